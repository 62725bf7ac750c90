"""Unauthenticated peers of all kinds, one function each, which takes the address of a port.

As a program, idle ones: python unauthenticated_peers.py HOST PORT COUNT
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import wire_format

Address = tuple[str, int]
SPARE = 32  # descriptors that a process has besides
# For a crowd to connect, and until a connection of it is dialled again: a kernel whose queue is
# full drops the request, and TCP repeats it after ever longer pauses.
COMING_SECONDS, REDIAL_SECONDS = 90.0, 0.5
# A dial that is reset was accepted before; one without a listener is refused.
_CAME = (0, errno.ECONNRESET, errno.EPIPE)


def _speak(address: Address, text: bytes, listen: float = 0.0) -> bytes:
    """Sends text and returns the answer, until the other end closes or time is up."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(address, 5) as link:
        link.settimeout(listen or 0.01)
        link.sendall(text)
        while more := link.recv(4096):
            heard += more
    return heard


def noise(address: Address) -> None:
    assert _speak(address, os.urandom(random.choice([1, 63, 64, 65, 5000])), 1.0) == b""


def http(address: Address) -> None:
    text = b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nX: " + b"x" * 100 + b"\r\n\r\n"
    assert _speak(address, text, 5.0) == b""


def scan(address: Address) -> None:
    _speak(address, b"")


def wrong_secret(address: Address, greeting: bytes) -> None:
    """Greets as a rank does, learns a greeting, and nothing more."""
    with socket.create_connection(address, 30) as link:
        link.sendall(greeting)
        theirs = link.recv(wire_format.GREETING.size, socket.MSG_WAITALL)
        assert len(theirs) == wire_format.GREETING.size, theirs
        link.sendall(wire_format.proof("not the secret", greeting, theirs))
        assert _rest_of(link) == b""


def is_answered(address: Address, greeting: bytes) -> bool:
    """Whether the listener greets as well."""
    with socket.create_connection(address, 30) as link:
        link.settimeout(30)
        link.sendall(greeting)
        return len(link.recv(wire_format.GREETING.size, socket.MSG_WAITALL)) > 0


def _rest_of(link: socket.socket) -> bytes:
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while more := link.recv(4096):
            heard += more
    return heard


def wrong_epoch(address: Address, purpose: int) -> None:
    """Knows the secret, but is of another job or another init: the listener sends no greeting, so
    there is nothing to prove."""
    assert _speak(address, wire_format.greeting(purpose, 1, 2, epoch=12345), 5.0) == b""


def replayed(address: Address, recorded: bytes) -> None:
    """Repeats a rank's recorded handshake: its proof does not match the listener's new greeting."""
    with socket.create_connection(address, 30) as link:
        link.sendall(recorded)
        assert len(_rest_of(link)) == wire_format.GREETING.size


def slow(address: Address, seconds: float) -> None:
    """A byte now and then."""
    own = wire_format.greeting(wire_format.RENDEZVOUS, 1, 2)
    with contextlib.suppress(OSError), socket.create_connection(address, 5) as link:
        end = time.monotonic() + seconds
        for byte in own:
            link.sendall(bytes([byte]))
            time.sleep(seconds / len(own))
            if time.monotonic() > end:
                return


class Crowd:
    """Connections that send nothing, in processes of their own, each with at most as many as the
    hard limit of descriptors."""

    def __init__(self, address: Address, count: int) -> None:
        share = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE)
        counts = [share] * (count // share) + [count % share] * (count % share > 0)
        self._holders = [
            subprocess.Popen(
                [sys.executable, __file__, address[0], str(address[1]), str(one)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for one in counts
        ]  # fmt: skip

    def await_dialled(self) -> int:
        """Until all have dialled, whether they were let in or not; how many that are."""
        return self._told()

    def await_all(self) -> int:
        """Until all have come, or some do not in time; how many connections there have been."""
        self._told()
        return self.await_come()

    def await_come(self) -> int:
        """As `await_all`, after `await_dialled`."""
        return self._told()

    def _told(self) -> int:
        return sum(int(one.stdout.readline()) for one in self._holders if one.stdout)

    def leave(self) -> None:
        for one in self._holders:
            one.communicate()


def _hold(address: Address, count: int) -> None:
    """Until standard input ends."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    there = []  # also those that were closed again
    with select.epoll() as waits:  # one look for thousands of them
        dials = [_Dial(address) for _ in range(count)]
        print(count, flush=True)
        waits.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
        for dial in dials:
            waits.register(dial.link, select.EPOLLOUT)
        waiting = {dial.link.fileno(): dial for dial in dials}
        end = redial = time.monotonic()
        end += COMING_SECONDS
        while waiting and time.monotonic() < end:
            for number, _ in waits.poll(0.1):
                if number == sys.stdin.fileno():  # the parent has gone
                    return
                waits.unregister(number)
                link = waiting.pop(number).link
                if link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _CAME:
                    there.append(link)
            if time.monotonic() < redial:
                continue
            redial = time.monotonic() + REDIAL_SECONDS / 4
            for late in [dial for dial in waiting.values() if dial.is_forgotten()]:
                del waiting[late.link.fileno()]
                late.link.close()
                another = _Dial(address)
                waits.register(another.link, select.EPOLLOUT)
                waiting[another.link.fileno()] = another
    print(len(there), flush=True)
    sys.stdin.read()


class _Dial:
    """A connection that was dialled and is neither accepted nor refused yet."""

    def __init__(self, address: Address) -> None:
        self.link = socket.socket()
        self.link.setblocking(False)
        self._since = time.monotonic()
        self.link.connect_ex(address)

    def is_forgotten(self) -> bool:
        """Whether the listener's kernel, whose queue may be full, has not answered in time."""
        return time.monotonic() - self._since >= REDIAL_SECONDS


def ports_of(pid: int) -> set[Address]:
    """The TCP ports where a process listens, on IPv4."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(fd)
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            found.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    return found


if __name__ == "__main__":
    _hold((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]))
