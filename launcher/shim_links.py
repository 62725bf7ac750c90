"""The socket over which the shims of an mpirun's ranks report to horoaccrun.

A shim proves that it knows the job's secret before anything that it says counts, and horoaccrun
proves it to the shim: the words are those of `shim.py`.
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
# Connections at a time that have not proved the secret, beside one for each rank.
_STRANGERS = 64


class ShimDoor:
    """Listens for shims under an abstract name, which leaves no file behind, whatever happens."""

    def __init__(self, supervisor: Supervisor, secret: str, size: int) -> None:
        """Starts to listen.

        Args:
            supervisor: Who gets to know of the ranks.
            secret: The job's.
            size: How many ranks the job has.
        """
        self.name = f"horoaccrun-{secrets.token_hex(16)}"
        self.meeting: socket.socket | None = None
        """Where the ranks meet, if they do so over TCP; becomes rank 0's alone."""
        self.secret = secret
        self.supervisor = supervisor
        self.size = size
        self._unproved: list[_ShimLink] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(max(128, size))
        self._listener.setblocking(False)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def open(self) -> None:
        """Lets shims in from now on."""
        self.supervisor.watch(self._listener.fileno(), self._accept)

    def proved(self, link: _ShimLink) -> None:
        """`link` is a shim's, or gone."""
        if link in self._unproved:
            self._unproved.remove(link)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # Out of descriptors: who waits would wake this loop for ever, so it is sent away.
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
        if len(self._unproved) >= _STRANGERS + self.size:
            self._unproved[0].close()
        self._unproved.append(_ShimLink(self, link))


class _ShimLink:
    """A connection; a rank's shim once it has proved that it is one."""

    def __init__(self, door: ShimDoor, link: socket.socket) -> None:
        self._door = door
        self._link = link
        self._rank: int | None = None
        self._rest = b""
        self._challenge = secrets.token_bytes(_NONCE)
        link.setblocking(False)
        door.supervisor.watch(link.fileno(), self._ready)
        with contextlib.suppress(OSError):  # gone again; that comes next
            link.sendall(self._challenge)

    def close(self) -> None:
        """Ends the connection."""
        self._door.proved(self)
        self._door.supervisor.unwatch(self._link.fileno())
        self._link.close()

    def _ready(self) -> None:
        """Reads who the rank is, with its pipes, and later how it ended."""
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
        except (ValueError, KeyError, TypeError):  # no shim would say that
            data = b""
        for fd in fds:
            os.close(fd)
        if not data:
            self.close()
            if self._rank is not None:
                # Without a report the shim was killed, and its program with it.
                self._door.supervisor.rank_ended(self._rank, -9)

    def _take(self, message: dict[str, object], fds: list[int]) -> None:
        if self._rank is not None:
            self._door.supervisor.rank_ended(self._rank, int(str(message["status"])))
            return
        rank, pid = int(str(message["rank"])), int(str(message["pid"]))
        nonce = bytes.fromhex(str(message["nonce"]))
        expected = proof_of_shim(self._door.secret, self._challenge, nonce, rank, pid)
        proved = hmac.compare_digest(expected, str(message["proof"]))
        vacant = 0 <= rank < self._door.size and rank not in self._door.supervisor.ranks
        if not proved or not vacant or len(nonce) != _NONCE or len(fds) != 2:
            raise ValueError("not a shim of this job")
        self._rank = rank
        self._door.proved(self)
        stdout, stderr = fds
        fds.clear()
        self._door.supervisor.add_rank(rank, pid, stdout, stderr)
        self._let_go(rank, nonce)

    def _let_go(self, rank: int, nonce: bytes) -> None:
        """Lets the program start, with the descriptors that only this one gets."""
        passed = [0] if stdin_for(rank) is None else []
        kinds = STDIN if passed else 0
        meeting = self._door.meeting if rank == 0 else None
        if meeting is not None:
            self._door.meeting = None
            passed.append(meeting.fileno())
            kinds |= LISTENER
        proof = proof_of_horoaccrun(self._door.secret, self._challenge, nonce)
        with contextlib.suppress(BrokenPipeError):  # the shim is gone; that comes next
            socket.send_fds(self._link, [bytes([kinds]) + proof.encode()], passed)
        if meeting is not None:
            meeting.close()
