"""Restricts servers that listen on all addresses of the machine to one of them.

TensorFlow binds the servers of its data service to all addresses and offers no choice. A filter
on the listening socket, added later, drops every packet to another address, so that a client which
dials that gets no answer, as from a port that a firewall closes. The filter needs no privilege, and
the connections inherit it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator

# From linux/filter.h and asm-generic/socket.h, which Python does not have.
_SO_ATTACH_FILTER = 26
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
_VERSION_4, _DESTINATION = 0x40, 16  # in an IPv4 header: the first byte's upper half, an offset


def listening(port: int) -> Iterator[socket.socket]:
    """Gives the sockets of this process that listen at a port.

    Args:
        port: The port.

    Yields:
        A socket of its own for each, which the caller closes.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # it was closed
            continue
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and one.family != socket.AF_UNIX and one.getsockname()[1] == port:
            yield one
        else:
            one.close()


def _program(address: str) -> bytes:
    """The filter's instructions: keeps IPv4 packets to the address."""
    (wanted,) = struct.unpack("!I", socket.inet_aton(address))
    steps = [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_AND, 0, 0, 0xF0),
        (_JUMP_IF_EQUAL, 0, 3, _VERSION_4),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _DESTINATION),
        (_JUMP_IF_EQUAL, 0, 1, wanted),
        (_RETURN, 0, 0, 0xFFFFFFFF),
        (_RETURN, 0, 0, 0),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def hear_only(port: int, address: str) -> None:
    """Restricts the sockets of this process that listen at a port to one address.

    Args:
        port: The port.
        address: An IPv4 address of this machine.

    Raises:
        OSError: Nothing listens there, or the kernel takes no filter.
    """
    program = ctypes.create_string_buffer(_program(address))
    filter = struct.pack("HP", len(program.raw) // 8, ctypes.addressof(program))
    found = False
    for one in listening(port):
        with one:
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter)
        found = True
    if not found:
        raise OSError(f"nothing listens at port {port} in this process")
