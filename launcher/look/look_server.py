"""The Unix socket at which the launcher of a job, or an agent, is asked how the job's ranks are.

It is part of the loop of its process, which waits for nobody: what may come and what is kept of a
client is bounded, in bytes and in time. A question is a line `STACK SECONDS EVENTS`, as a rank
takes it (csrc/runtime/trace/reading_server.h), and so is the answer: of each rank a line `RANK
BYTES` and so much text. With the number STATUS comes what the process itself has to say, as JSON.
"""

from __future__ import annotations

import abc
import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horoacc.monitor.door import (
    AGENT,
    LAUNCHER,
    SHORT,
    SHORT_SECONDS,
    cannot_look,
    is_users,
    listen,
)

if TYPE_CHECKING:
    from horoacc.launcher.supervise import Supervisor

__all__ = ["BUSY", "PART", "STATUS", "Reply", "framed_status", "is_whole", "serve_looks"]

STATUS = -1
PART = 48 << 10
"""Bytes of an answer that go over a channel at once: the other end's kernel takes so many."""
BUSY = {"no_ranks": "many ask for its ranks at the same time: ask again"}
"""What one of too many is told."""
_MOST_CLIENTS = 16
_QUESTION_BYTES = 256
_QUESTION_SECONDS = 1.0
_ANSWER_BYTES = 64 << 20
_ANSWER_SECONDS = 15.0


class Reply(abc.ABC):
    """The answer to one question: what has come of it, and not gone to the asking process yet."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._text = bytearray()
        self._over = False

    def give(self, part: bytes) -> None:
        """Takes a part of the answer."""
        self._text += part
        self._tell()

    def end(self) -> None:
        """No more comes."""
        self._over = True
        self._tell()

    @abc.abstractmethod
    def _tell(self) -> None:
        """Sends what can go now."""


def framed_status(status: Mapping[str, Any]) -> bytes:
    """Writes what a process itself has to say as a part of an answer."""
    text = json.dumps(status).encode()
    return f"{STATUS} {len(text)}\n".encode() + text


def is_whole(answer: bytes | bytearray) -> bool:
    """Whether an answer has all parts that it begins, as one that was cut off has not."""
    at = 0
    while at < len(answer):
        end = answer.find(b"\n", at)
        try:
            _, size = map(int, answer[at:end].split())
        except ValueError:
            return False
        if end < 0 or size < 0:
            return False
        at = end + 1 + size
    return at == len(answer) > 0


def serve_looks(
    loop: Supervisor,
    job: str,
    owner: str,
    environ: Mapping[str, str],
    answer: Callable[[bytes, Reply], None],
) -> str:
    """Has a process asked about its job until its loop is closed. The job goes on without it.

    Args:
        loop: The process's.
        job: The job's short name.
        owner: LAUNCHER or AGENT.
        environ: Variables, which may name the folder of the socket.
        answer: Takes each question, a line, and who asks it.

    Returns:
        Why it cannot be asked, "" if it can.
    """
    try:
        listener, path = listen(job, owner, environ)
    except OSError as error:
        return cannot_look(error, environ)
    _LookServer(loop, listener, path, answer)
    return ""


class _LookServer:
    def __init__(
        self,
        loop: Supervisor,
        listener: socket.socket,
        path: Path,
        answer: Callable[[bytes, Reply], None],
    ) -> None:
        self.loop = loop
        self.answer = answer
        self.clients: list[_Client] = []  # the oldest first
        self._listener = listener
        self._path = path
        self._watches_again = math.inf
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)
        loop.timers.append(self._on_time)
        loop.closing.callback(self._close)

    def _close(self) -> None:
        for client in list(self.clients):
            client.close()
        if self._watches_again == math.inf:
            self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        job, owner, _ = self._path.name.split(".")
        # Agents end with the launcher, and may be killed before they come to it.
        agents = self._path.parent.glob(f"{job}.{AGENT}.*") if owner == LAUNCHER else ()
        with contextlib.suppress(OSError):
            for path in (self._path, *agents):
                path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError as error:
            if error.errno in SHORT:
                self.loop.unwatch(self._listener.fileno())
                self._watches_again = time.monotonic() + SHORT_SECONDS
            return
        if not is_users(link):
            link.close()
            return
        if len(self.clients) >= _MOST_CLIENTS:
            silent = [client for client in self.clients if client.silent]
            (silent or self.clients)[0].close()
        self.clients.append(_Client(self, link))

    def _on_time(self, now: float) -> float:
        for client in list(self.clients):
            if now >= client.due:
                client.close()
        if now >= self._watches_again:
            self._watches_again = math.inf
            self.loop.watch(self._listener.fileno(), self._accept)
        return min([self._watches_again, *(client.due for client in self.clients)])


class _Client(Reply):
    """A connection: its question comes, it waits, and the answer goes."""

    def __init__(self, server: _LookServer, link: socket.socket) -> None:
        super().__init__()
        self.silent = True  # its question has not come
        self.due = time.monotonic() + _QUESTION_SECONDS
        self._server = server
        self._link = link
        self._question = bytearray()
        self._watched = True
        link.setblocking(False)
        server.loop.watch(link.fileno(), self._hear)

    def close(self) -> None:
        if self in self._server.clients:
            self._server.clients.remove(self)
            self._watch(False)
            self._link.close()

    def _hear(self) -> None:
        if self not in self._server.clients:
            return  # closed since it could be read
        data = b""
        with contextlib.suppress(OSError):
            data = self._link.recv(_QUESTION_BYTES)
        self._question += data
        line, end, _ = bytes(self._question).partition(b"\n")
        if end:
            self.silent = False
            self.due = time.monotonic() + _ANSWER_SECONDS
            self._watch(False)
            self._server.answer(line, self)
        elif not data or len(self._question) >= _QUESTION_BYTES:
            self.close()

    def _tell(self) -> None:
        if self not in self._server.clients:
            return
        try:
            while self._text:
                del self._text[: self._link.send(self._text)]
        except BlockingIOError:
            if len(self._text) > _ANSWER_BYTES:
                self.close()
                return
        except OSError:
            self.close()
            return
        if self._over and not self._text:
            self.close()
        else:
            self._watch(bool(self._text))

    def _watch(self, on: bool) -> None:
        """Calls `_tell` when more can go; the question is here by then."""
        if on and not self._watched:
            self._server.loop.watch(self._link.fileno(), self._tell, writes=True)
        elif self._watched and not on:
            self._server.loop.unwatch(self._link.fileno())
        self._watched = on
