"""Brings ranks that an agent starts their function, and takes what they give back, on their host.

The process that started the agent, such as a Ray actor, listens on a Unix socket with an abstract
name, so that there is no file. Ranks connect; each end looks whether the other is the same user's.
Frames are a name and a body. The first, `call` and `path`, go to the rank; all others come from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence

VARIABLE = "HOROACC_COURIER"
"""The name of the socket."""
_HEAD = struct.Struct(">HQ")  # of the lengths of name and body
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Courier:
    """The end that listens.

    Attributes:
        name: Of the socket, for `VARIABLE`.
    """

    def __init__(
        self, call: bytes, path: Sequence[str], take: Callable[[str, bytes], None]
    ) -> None:
        """Listens, in a thread.

        Args:
            call: The pickled function, for `function_rank.call`.
            path: Where ranks find its modules.
            take: Takes a name and a body that a rank sends. Threads call it.
        """
        self.name = f"horoacc-{secrets.token_hex(16)}"
        self._first = (("call", call), ("path", json.dumps(list(path)).encode()))
        self._take = take
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(128)
        self._start(self._accept)

    def close(self, seconds: float) -> None:
        """Ends the listening, once the ranks, which have ended, have been heard to their ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(seconds)
        self._listener.close()

    def _start(self, target: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=target, name="horoacc-courier", daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has been closed
            while True:
                link, _ = self._listener.accept()
                self._start(lambda link=link: self._serve(link))  # type: ignore[misc]

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, EOFError):
            if not _is_own(link):
                return
            for name, body in self._first:
                _send(link, name, body)
            while True:
                self._take(*_receive(link))


class Post:
    """The rank's end.

    Attributes:
        call: The pickled function.
        path: Where its modules are.
    """

    def __init__(self, name: str) -> None:
        """Connects, and receives the function.

        Raises:
            OSError: Nobody listens there, or it is another user.
        """
        self._lock = threading.Lock()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.connect(f"\0{name}")
        if not _is_own(self._link):
            raise OSError("another user listens at the courier's socket")
        _, self.call = _receive(self._link)
        _, path = _receive(self._link)
        self.path: list[str] = json.loads(path)

    def send(self, name: str, body: bytes) -> None:
        """Sends something."""
        with self._lock:
            _send(self._link, name, body)


class _Process:
    def __init__(self) -> None:
        self.post: Post | None = None


_process = _Process()


def open_post() -> Post:
    """Connects this rank with its courier, once. OSError: there is none."""
    if _process.post is None:
        _process.post = Post(os.environ[VARIABLE])
    return _process.post


def post() -> Post | None:
    """This rank's connection, if it has one."""
    return _process.post


def _is_own(link: socket.socket) -> bool:
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.getuid())


def _send(link: socket.socket, name: str, body: bytes) -> None:
    link.sendall(_HEAD.pack(len(name), len(body)) + name.encode())
    link.sendall(body)


def _receive(link: socket.socket) -> tuple[str, bytes]:
    name, body = _HEAD.unpack(_exactly(link, _HEAD.size))
    return _exactly(link, name).decode(), _exactly(link, body)


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = link.recv_into(view[have:])
        if count == 0:
            raise EOFError
        have += count
    return bytes(data)
