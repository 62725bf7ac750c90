"""The addresses by which other hosts reach this one.

A small file: ranks wait for what it imports.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

# Addresses on other networks, which are nobody's (RFC 5737 and RFC 3849).
ELSEWHERE = ("192.0.2.1", "2001:db8::1")
_LOOPBACK = ("127.0.0.1", "::1")


def address_towards(other: str) -> tuple[socket.AddressFamily, str]:
    """This machine's address as another host sees it, and its family; OSError: there is no way."""
    failure = OSError(f"{other} has no address")
    for family, _, _, _, there in socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(there)  # sends nothing; the kernel says which way it would go
                return family, str(probe.getsockname()[0])
            except OSError as error:  # a name may have addresses of a family that this host lacks
                failure = error
    raise failure


def listen(names: Iterable[str], backlog: int) -> tuple[socket.socket, str]:
    """Listens where the other ranks of a job reach this host.

    Many systems have a host's own name mean 127.0.1.1, which says nothing to other hosts: unless
    the first name is one of the loopback itself, such an address is the last choice.

    Args:
        names: By which the others may know this host, the likeliest first; none: all are here.
        backlog: Of the socket.

    Returns:
        The socket, and its host:port.

    Raises:
        OSError: No name is this host's, and it has no network.
    """
    names = list(names)
    here = not names or names[0] in ("localhost", "::1") or names[0].startswith("127.")
    found = [*_LOOPBACK] if here else []
    for name in names:
        with contextlib.suppress(OSError):
            known = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found += [str(entry[4][0]) for entry in known]
    if not here:
        for elsewhere in ELSEWHERE:
            with contextlib.suppress(OSError):
                found.append(address_towards(elsewhere)[1])
        found.sort(key=is_loopback)
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with contextlib.suppress(OSError):
            listener = socket.create_server((address, 0), family=family, backlog=backlog)
            shown = f"[{address}]" if family == socket.AF_INET6 else address
            return listener, f"{shown}:{listener.getsockname()[1]}"
    raise OSError(f"this host has no address under {' or '.join(names)}, and no network")


def is_loopback(address: str) -> bool:
    """Whether only this host reaches it."""
    return address == "::1" or address.startswith("127.")
