"""The Unix socket at which the launcher of a job, or an agent, is asked how the job's ranks are.

It is part of the loop of its process, which waits for nobody: what may come and what is kept of a
visitor is bounded, in bytes and in time. A question is a line `STACK SECONDS EVENTS`, as a rank
takes it (csrc/runtime/trace/reading_server.h), and so is the answer: of each rank a line `RANK
BYTES` and so much text. With the number WORD comes what the process itself has to say, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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

__all__ = ["BUSY", "PART", "WORD", "Reply", "framed_word", "is_whole", "open_window"]

WORD = -1
PART = 48 << 10
"""Bytes of an answer that go over a channel at once: the other end's kernel takes so many."""
BUSY = {"no_ranks": "many ask for its ranks at the same time: ask again"}
"""What one of too many is told."""
_MOST_VISITORS = 16
_QUESTION_BYTES = 256
_QUESTION_SECONDS = 1.0
_ANSWER_BYTES = 64 << 20
_ANSWER_SECONDS = 15.0


class Reply(Protocol):
    """Who has asked."""

    def give(self, part: bytes) -> None:
        """Takes a part of the answer."""

    def end(self) -> None:
        """No more comes."""


def framed_word(word: Mapping[str, Any]) -> bytes:
    """Writes what a process itself has to say as a part of an answer."""
    text = json.dumps(word).encode()
    return f"{WORD} {len(text)}\n".encode() + text


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


def open_window(
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
    _Window(loop, listener, path, answer)
    return ""


class _Window:
    def __init__(
        self,
        loop: Supervisor,
        listener: socket.socket,
        path: Path,
        answer: Callable[[bytes, Reply], None],
    ) -> None:
        self.loop = loop
        self.answer = answer
        self.visitors: list[_Visitor] = []  # the oldest first
        self._listener = listener
        self._path = path
        self._watches_again = math.inf
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)
        loop.timers.append(self._on_time)
        loop.closing.callback(self._close)

    def _close(self) -> None:
        for visitor in list(self.visitors):
            visitor.close()
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
        if len(self.visitors) >= _MOST_VISITORS:
            silent = [visitor for visitor in self.visitors if visitor.silent]
            (silent or self.visitors)[0].close()
        self.visitors.append(_Visitor(self, link))

    def _on_time(self, now: float) -> float:
        for visitor in list(self.visitors):
            if now >= visitor.due:
                visitor.close()
        if now >= self._watches_again:
            self._watches_again = math.inf
            self.loop.watch(self._listener.fileno(), self._accept)
        return min([self._watches_again, *(visitor.due for visitor in self.visitors)])


class _Visitor:
    """A connection: its question comes, it waits, and the answer goes."""

    def __init__(self, window: _Window, link: socket.socket) -> None:
        self.silent = True  # its question has not come
        self.due = time.monotonic() + _QUESTION_SECONDS
        self._window = window
        self._link = link
        self._text = bytearray()  # of the question, and then of the answer what has not gone
        self._over = False
        self._watched = True
        link.setblocking(False)
        window.loop.watch(link.fileno(), self._hear)

    def close(self) -> None:
        if self in self._window.visitors:
            self._window.visitors.remove(self)
            self._watch(False)
            self._link.close()

    def give(self, part: bytes) -> None:
        self._text += part
        self._tell()

    def end(self) -> None:
        self._over = True
        self._tell()

    def _hear(self) -> None:
        if self not in self._window.visitors:
            return  # closed since it could be read
        data = b""
        with contextlib.suppress(OSError):
            data = self._link.recv(_QUESTION_BYTES)
        self._text += data
        line, end, _ = bytes(self._text).partition(b"\n")
        if end:
            self.silent = False
            self.due = time.monotonic() + _ANSWER_SECONDS
            self._watch(False)
            self._text.clear()
            self._window.answer(line, self)
        elif not data or len(self._text) >= _QUESTION_BYTES:
            self.close()

    def _tell(self) -> None:
        if self not in self._window.visitors:
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
            self._window.loop.watch(self._link.fileno(), self._tell, writes=True)
        elif self._watched and not on:
            self._window.loop.unwatch(self._link.fileno())
        self._watched = on
