"""How ranks that horoaccrun started without MPI find each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from horoacc.launcher.environment.placement import Placement, PlacementError, Rendezvous


def rendezvous(placement: Placement, environ: Mapping[str, str]) -> Rendezvous:
    """Reads the address of the rendezvous; a PlacementError if it or the secret is missing."""
    address = environ.get("HOROACC_RENDEZVOUS", "")
    secret = environ.get("HOROACC_SECRET", "")
    if ":" not in address or not secret:
        missing = "HOROACC_SECRET" if ":" in address else "HOROACC_RENDEZVOUS (host:port)"
        raise PlacementError(
            f"HOROACC_RANK is set, but {missing} is not; start with horoaccrun (a program that a "
            "rank starts is no rank, and gets no secret from it)"
        )
    listen_fd = None
    if placement.rank == 0:
        listen_fd = _inherited(environ.get("HOROACC_RENDEZVOUS_FD", ""), address)
    return Rendezvous(address, listen_fd, secret)


def _inherited(text: str, address: str) -> int | None:
    """The launcher's listening socket, if it is still open.

    A wrapper between the launcher and this process, or an earlier `init`, may have closed it, and
    its number may be another file's by now; the address is then free to be bound.
    """
    if not text.isdecimal():
        return None
    fd = int(text)
    try:
        copy = os.dup(fd)
    except OSError:
        return None
    try:
        probe = socket.socket(fileno=copy)
    except OSError:  # a file, which keeps its one descriptor
        os.close(copy)
        return None
    with contextlib.closing(probe):
        try:
            host, port = probe.getsockname()[:2]
            listening = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except (OSError, ValueError):
            return None
    name, _, number = address.rpartition(":")
    if not listening or (host, str(port)) != (name.strip("[]"), number):
        return None
    os.set_inheritable(fd, False)
    return fd
