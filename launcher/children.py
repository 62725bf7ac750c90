"""The launcher's child processes, ranks or an mpirun: their pipes, process groups and ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from horoacc.launcher.output import RankStream
from horoacc.launcher.processes import signal_group

_CHUNK = 1 << 16
# After a process's end: for its own children to end, and for its pipes to run dry.
DRAIN_SECONDS = 1.0

LineHandler = Callable[[str, bytes], None]
"""Takes the name of a stream and a line that came on it."""


class Loop(Protocol):
    """The supervisor, as far as it reads for a child."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Calls `ready` whenever `fd` can be read."""

    def unwatch(self, fd: int) -> None:
        """Ends `watch`."""

    def guard_output(self) -> AbstractContextManager[None]:
        """Around everything that prints."""


class Rank:
    """A rank's process, the head of its process group."""

    def __init__(
        self, loop: Loop, number: int, group: int, pipes: dict[str, tuple[int, RankStream]]
    ) -> None:
        """Starts to read the pipes.

        Args:
            loop: Reads the pipes.
            number: The rank.
            group: Its process id, which is also its process group's.
            pipes: The descriptor to read from and the stream to feed, by the stream's name.
        """
        self.number = number
        self.group = group
        self.streams = {name: stream for name, (_, stream) in pipes.items()}
        self.status: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self.ended_at = 0.0
        self._group_gone = False
        self._loop = loop
        self._pipes = _Pipes(loop, {fd: _feeder(stream) for fd, stream in pipes.values()})

    @property
    def draining(self) -> bool:
        """Whether it ended while its pipes are still open."""
        return self.status is not None and self._pipes.open

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._pipes.open

    def sweep(self, now: float) -> bool:
        """Ends the rest of its process group, and closes its pipes, some time after its end.

        Args:
            now: The time on the clock of `ended_at`.

        Returns:
            Whether its process group has gone since the last call.
        """
        gone = False
        if not self._group_gone:
            gone = not signal_group(self.group, 0)
            if not gone and now >= self.ended_at + DRAIN_SECONDS:
                signal_group(self.group, signal.SIGKILL)
                gone = True
            self._group_gone = gone
        if self._pipes.open and now >= self.ended_at + 2 * DRAIN_SECONDS:
            # A process that left the group still holds the pipe; it is killed at the end.
            self._pipes.close()
            with self._loop.guard_output():
                for stream in self.streams.values():
                    stream.end()
        return gone


class MpirunProcess:
    """An mpirun, the head of its process group."""

    def __init__(self, loop: Loop, pid: int, pipes: dict[str, int], line: LineHandler) -> None:
        """Starts to read the pipes.

        Args:
            loop: Reads the pipes.
            pid: Its process id.
            pipes: The descriptors to read from, by the stream's name.
            line: Gets the lines that it prints or forwards.
        """
        self.pid = pid
        self.status: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self._ended_at = 0.0
        self._pipes = _Pipes(loop, {fd: _splitter(name, line) for name, fd in pipes.items()})

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._pipes.open

    def ended(self, status: int) -> None:
        """Notes how it ended."""
        self.status = status
        self._ended_at = time.monotonic()

    def sweep(self, now: float) -> None:
        """Closes its pipes some time after its end: another process may still hold them."""
        if self.status is not None and now >= self._ended_at + 2 * DRAIN_SECONDS:
            self._pipes.close()


class _Pipes:
    """The pipes of one process."""

    def __init__(self, loop: Loop, takers: dict[int, Callable[[bytes], None]]) -> None:
        """Starts to read.

        Args:
            loop: Calls back when a descriptor can be read.
            takers: Called with the bytes of each descriptor, and with none at its end.
        """
        self._loop = loop
        self._open: set[int] = set()
        for fd, take in takers.items():
            os.set_blocking(fd, False)
            self._open.add(fd)
            loop.watch(fd, self._reader(fd, take))

    @property
    def open(self) -> bool:
        """Whether a pipe has not come to its end."""
        return bool(self._open)

    def close(self) -> None:
        """Ends the reading: a process that outlives its parent may hold a pipe for ever."""
        for fd in list(self._open):
            self._close(fd)

    def _reader(self, fd: int, take: Callable[[bytes], None]) -> Callable[[], None]:
        def ready() -> None:
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            with self._loop.guard_output():
                take(data)
            if not data:
                self._close(fd)

        return ready

    def _close(self, fd: int) -> None:
        self._loop.unwatch(fd)
        os.close(fd)
        self._open.discard(fd)


def _feeder(stream: RankStream) -> Callable[[bytes], None]:
    def take(data: bytes) -> None:
        if data:
            stream.feed(data)
        else:
            stream.end()

    return take


def _splitter(name: str, line: LineHandler) -> Callable[[bytes], None]:
    rest = b""

    def take(data: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines, rest = [rest], b""
        for text in lines:
            line(name, text)

    return take
