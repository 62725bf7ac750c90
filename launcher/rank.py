"""A rank's process as the launcher sees it: two pipes, a process group and an end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from horoacc.launcher.output import RankStream
from horoacc.launcher.processes import signal_group

CHUNK = 1 << 16
# What a rank's own children may take to end, and its pipes to run dry, after it ended.
DRAIN_SECONDS = 1.0


class Loop(Protocol):
    """What calls back when there is something to read."""

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
            loop: What calls back.
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
        self._open_fds: set[int] = set()
        for fd, stream in pipes.values():
            os.set_blocking(fd, False)
            self._open_fds.add(fd)
            loop.watch(fd, self._reader(stream, fd))

    @property
    def draining(self) -> bool:
        """Whether it ended while its pipes are still open."""
        return self.status is not None and bool(self._open_fds)

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._open_fds

    def sweep(self, now: float) -> bool:
        """Ends what it has left behind, and closes its pipes, some time after its end.

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
        if self._open_fds and now >= self.ended_at + 2 * DRAIN_SECONDS:
            # Something that left the group still holds the pipe; it is killed at the end.
            for fd in list(self._open_fds):
                self._close(fd)
        return gone

    def _reader(self, stream: RankStream, fd: int) -> Callable[[], None]:
        def ready() -> None:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            with self._loop.guard_output():
                if data:
                    stream.feed(data)
                else:
                    stream.end()
            if not data:
                self._close(fd)

        return ready

    def _close(self, fd: int) -> None:
        self._loop.unwatch(fd)
        os.close(fd)
        self._open_fds.discard(fd)
        if not self._open_fds:
            with self._loop.guard_output():
                for stream in self.streams.values():
                    stream.end()
