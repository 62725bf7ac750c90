"""This program's stdout and stderr: lines go there whoever reads them, and also if nobody does.

No write waits. What a reader does not take at once is kept up to a limit and then lost, and so is
what a full disk or a terminal that is gone refuses: a job is worth more than its lines.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TextIO

# Kept of what a reader has not taken. From the first number on ranks are to wait for the reader;
# beyond the second lines are lost.
_MANY_BYTES = 8 << 20
_MOST_BYTES = 16 << 20
# A reader that takes nothing for so long has stalled, and nothing waits for it any more.
STALL_SECONDS = 10.0
_STALLED = "its reader does not read"
_END = ord("\n")


def ensure_open() -> None:
    """Opens what is closed of stdin, stdout and stderr: another file would get its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class Sink:
    """Where lines go."""

    closed = False
    """Whether its reader is gone."""

    def __init__(self, identity: tuple[int, int], terminal: bool, colour: bool) -> None:
        self.identity = identity
        """To know that stdout and stderr are the same pipe, terminal or file."""
        self.terminal = terminal
        self.colour = colour

    def write(self, data: bytes) -> None:
        """Writes all of it."""
        raise NotImplementedError

    def flush(self) -> None:
        """Writes of what is kept as much as is taken without waiting."""

    def give_up(self) -> None:
        """Loses what is kept."""

    @property
    def unwritten(self) -> int | None:
        """If something is kept: the descriptor that can be written to when it is time to flush."""
        return None

    def awaits(self, seconds: float) -> bool:
        """Whether something is kept, for a reader that has not taken nothing for so long."""
        return False

    @property
    def full(self) -> bool:
        """Whether so much is kept that its writers are to wait for the reader."""
        return False


class TextSink(Sink):
    """Lines go to a stream of Python's, such as a notebook's."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__((-1, id(stream)), False, False)
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Writes all of it."""
        self._stream.write(data.decode(errors="replace"))
        self._stream.flush()


class _Kept(NamedTuple):
    data: memoryview
    lines: int
    """How many are lost with it: more than one, if it tells of lines that are lost."""


class DescriptorSink(Sink):
    """Lines go to a descriptor. Two descriptors of one pipe or file are to share a sink."""

    def __init__(self, fd: int, plain: bool, fails: Callable[[str], None]) -> None:
        """Writes nothing yet.

        Args:
            fd: The descriptor.
            plain: Whether a terminal is to have no colours.
            fails: Called once, with the reason, when lines begin to be lost.
        """
        state = os.fstat(fd)
        terminal = os.isatty(fd)
        super().__init__((state.st_dev, state.st_ino), terminal, terminal and not plain)
        self._fails = fails
        self._queue: deque[_Kept] = deque()
        self._size = 0
        self._taken_at = 0.0
        self._lost = 0
        self._warned = False
        self._given_up = False  # since the reader took something the last time
        self._torn = False  # within a line
        self._fd, self._put = _non_blocking(fd, state.st_mode, terminal)

    def write(self, data: bytes) -> None:
        """Writes all of it, now or when the reader takes it; or loses it."""
        if self.closed:
            return
        if self._queue and self._size + len(data) > _MOST_BYTES:
            self._lose(1, _STALLED)
            return
        if self._lost:
            torn = self._queue[-1].data[-1] != _END if self._queue else self._torn
            told = b"\n" * torn + b"horoaccrun: %d lines were lost here\n" % self._lost
            self._keep(_Kept(memoryview(told), self._lost))
            self._lost = 0
        self._keep(_Kept(memoryview(data), 1))
        self.flush()

    def flush(self) -> None:
        """Writes of what is kept as much as is taken without waiting."""
        while self._queue and not self.closed:
            try:
                count = self._put(self._queue[0].data)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.closed = True
                self._drop()
                return
            except OSError as error:
                self._lose(self._drop(), error.strerror or str(error))
                return
            first = self._queue.popleft()
            self._size -= count
            self._torn = count > 0 and first.data[count - 1] != _END
            self._taken_at = time.monotonic()
            self._given_up = False
            if count < len(first.data):
                self._queue.appendleft(_Kept(first.data[count:], first.lines))

    def give_up(self) -> None:
        """Loses what is kept."""
        if self._queue:
            self._given_up = True
            self._lose(self._drop(), _STALLED)

    @property
    def unwritten(self) -> int | None:
        """If something is kept: the descriptor that can be written to when it is time to flush."""
        return self._fd if self._queue else None

    def awaits(self, seconds: float) -> bool:
        """Whether something is kept, for a reader that has not taken nothing for so long."""
        waits = bool(self._queue) and not self._given_up
        return waits and time.monotonic() < self._taken_at + seconds

    @property
    def full(self) -> bool:
        """Whether so much is kept that its writers are to wait for the reader."""
        return self._size >= _MANY_BYTES and self.awaits(STALL_SECONDS)

    def _keep(self, kept: _Kept) -> None:
        if not self._queue:
            self._taken_at = time.monotonic()
        self._queue.append(kept)
        self._size += len(kept.data)

    def _drop(self) -> int:
        lines = sum(kept.lines for kept in self._queue)
        self._queue.clear()
        self._size = 0
        return lines

    def _lose(self, lines: int, why: str) -> None:
        self._lost += lines
        if not self._warned:
            self._warned = True
            self._fails(why)


def _non_blocking(fd: int, mode: int, terminal: bool) -> tuple[int, Callable[[memoryview], int]]:
    """How to write to a descriptor without waiting.

    The flag O_NONBLOCK belongs to the open file, which other processes have as well, the user's
    shell for one: so a pipe or a terminal is opened once more.

    Returns:
        The descriptor that says when to write, and the call that writes.
    """
    if stat.S_ISSOCK(mode):
        link = socket.socket(fileno=os.dup(fd))
        return link.fileno(), lambda data: link.send(data, socket.MSG_DONTWAIT)
    if not stat.S_ISFIFO(mode) and not terminal:
        return fd, functools.partial(os.write, fd)  # a file takes all at once
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # it is another user's, such as a terminal after su; or its reader is gone
        poll = select.poll()
        poll.register(fd, select.POLLOUT)

        def put(data: memoryview) -> int:
            if not poll.poll(0):
                raise BlockingIOError
            return os.write(fd, data[: select.PIPE_BUF])

        return fd, put
    return own, functools.partial(os.write, own)
