"""The socket over which the shims of an mpirun's ranks report to horoaccrun.

A shim proves that it knows the job's secret before horoaccrun heeds its messages, and horoaccrun
proves it to the shim. `shim.py` defines the proofs.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct

from horoacc.launcher.local import stdin_for
from horoacc.launcher.shim import LISTENER, STDIN, proof_of_horoaccrun, proof_of_shim
from horoacc.launcher.supervise import Supervisor

_NONCE = 32
_LONGEST = 4096  # bytes of a line
# Connections at a time that have not proved the secret, in addition to one for each rank.
_UNAUTHENTICATED = 64


class ShimListener:
    """Listens for shims under an abstract name, which never leaves a file behind."""

    def __init__(self, supervisor: Supervisor, secret: str, size: int) -> None:
        self.name = f"horoaccrun-{secrets.token_hex(16)}"
        self.rendezvous: socket.socket | None = None
        """The socket of a rendezvous over TCP, or None; rank 0 gets it."""
        self.secret = secret
        self.supervisor = supervisor
        self.size = size
        self._unauthenticated: list[_ShimLink] = []
        self._held: list[_ShimLink] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(max(128, size))
        self._listener.setblocking(False)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        supervisor.watch(self._listener.fileno(), self._accept)
        supervisor.timers.append(self._let_go)

    def authenticated(self, link: _ShimLink) -> None:
        """`link` has proved the secret."""
        if link in self._unauthenticated:
            self._unauthenticated.remove(link)

    def closed(self, link: _ShimLink) -> None:
        """`link` is closed."""
        self.authenticated(link)
        if link in self._held:
            self._held.remove(link)

    def hold(self, link: _ShimLink) -> None:
        """Keeps a shim whose rank has ended until mpirun may see that."""
        self._held.append(link)

    def _let_go(self, _: float) -> float:
        """Lets the shims of ended ranks end, too, unless other ranks must go on without mpirun."""
        while self._held and not self.supervisor.holds_ends:
            self._held.pop().let_go()
        return float("inf")

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors: the pending connection would wake this loop for ever, so close it.
            os.close(self._spare)
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            return
        _, uid, _ = struct.unpack(
            "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if uid != os.geteuid():
            link.close()
            return
        if len(self._unauthenticated) >= _UNAUTHENTICATED + self.size:
            self._unauthenticated[0].close()
        self._unauthenticated.append(_ShimLink(self, link))


class _ShimLink:
    """A connection, pending until its peer has proved to be a rank's shim."""

    def __init__(self, listener: ShimListener, link: socket.socket) -> None:
        self._listener = listener
        self._link = link
        self._rank: int | None = None
        self._rest = b""
        self._challenge = secrets.token_bytes(_NONCE)
        link.setblocking(False)
        listener.supervisor.watch(link.fileno(), self._ready)
        with contextlib.suppress(OSError):  # closed by the peer: the next read says so
            link.sendall(self._challenge)

    def close(self) -> None:
        """Ends the connection."""
        self._listener.closed(self)
        self._listener.supervisor.unwatch(self._link.fileno())
        self._link.close()

    def let_go(self) -> None:
        """Lets the shim end, whose rank has."""
        with contextlib.suppress(OSError):  # it is gone
            self._link.send(b"\0")

    def _ready(self) -> None:
        """Reads the rank's number and pipes, and later its exit status."""
        try:
            data, fds, _, _ = socket.recv_fds(self._link, _LONGEST, 2)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > _LONGEST:
                raise ValueError("a line without end")
            for line in lines:
                self._take(json.loads(line), fds)
        except (ValueError, KeyError, TypeError):  # no shim sends that
            data = b""
        for fd in fds:
            os.close(fd)
        if not data:
            self.close()
            if self._rank is not None:
                # Without a report the shim was killed, and its program with it.
                self._listener.supervisor.rank_ended(self._rank, -9)

    def _take(self, message: dict[str, object], fds: list[int]) -> None:
        if self._rank is not None:
            self._listener.supervisor.rank_ended(self._rank, int(str(message["status"])))
            self._listener.hold(self)
            return
        rank, pid = int(str(message["rank"])), int(str(message["pid"]))
        nonce = bytes.fromhex(str(message["nonce"]))
        expected = proof_of_shim(self._listener.secret, self._challenge, nonce, rank, pid)
        proved = hmac.compare_digest(expected, str(message["proof"]))
        vacant = 0 <= rank < self._listener.size and rank not in self._listener.supervisor.ranks
        if not proved or not vacant or len(nonce) != _NONCE or len(fds) != 2:
            raise ValueError("not a shim of this job")
        self._rank = rank
        self._listener.authenticated(self)
        stdout, stderr = fds
        fds.clear()
        self._listener.supervisor.add_rank(rank, pid, stdout, stderr)
        self._release(rank, nonce)

    def _release(self, rank: int, nonce: bytes) -> None:
        """Lets the rank start its program, with the descriptors that only this rank gets."""
        passed = [0] if stdin_for(rank) is None else []
        kinds = STDIN if passed else 0
        rendezvous = self._listener.rendezvous if rank == 0 else None
        if rendezvous is not None:
            self._listener.rendezvous = None
            passed.append(rendezvous.fileno())
            kinds |= LISTENER
        proof = proof_of_horoaccrun(self._listener.secret, self._challenge, nonce)
        with contextlib.suppress(BrokenPipeError):  # the shim is gone: the next read says so
            socket.send_fds(self._link, [bytes([kinds]) + proof.encode()], passed)
        if rendezvous is not None:
            rendezvous.close()
