"""A process's output as it comes: pipes that are read when there is something, until their end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

CHUNK = 1 << 16
# What a process's own children may take to end, and its pipes to run dry, after it ended.
DRAIN_SECONDS = 1.0


class Loop(Protocol):
    """What calls back when there is something to read."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Calls `ready` whenever `fd` can be read."""

    def unwatch(self, fd: int) -> None:
        """Ends `watch`."""

    def guard_output(self) -> AbstractContextManager[None]:
        """Around everything that prints."""


class Pipes:
    """The pipes of one process."""

    def __init__(self, loop: Loop, takers: dict[int, Callable[[bytes], None]]) -> None:
        """Starts to read.

        Args:
            loop: What calls back.
            takers: What gets the bytes of each descriptor, and nothing at its end.
        """
        self._loop = loop
        self._open: set[int] = set()
        for fd, take in takers.items():
            os.set_blocking(fd, False)
            self._open.add(fd)
            loop.watch(fd, self._reader(fd, take))

    @property
    def open(self) -> bool:
        """Whether there may be something to read yet."""
        return bool(self._open)

    def close(self) -> None:
        """Ends the reading: something may hold a pipe for ever."""
        for fd in list(self._open):
            self._close(fd)

    def _reader(self, fd: int, take: Callable[[bytes], None]) -> Callable[[], None]:
        def ready() -> None:
            try:
                data = os.read(fd, CHUNK)
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
