"""mpirun's own process as the launcher sees it, when the ranks are its and not the launcher's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from horoacc.launcher.rank import CHUNK, DRAIN_SECONDS, Loop

LineHandler = Callable[[str, bytes], None]
"""Takes the name of a stream and a line that came on it."""


class Engine:
    """An mpirun, the head of its process group."""

    def __init__(self, loop: Loop, pid: int, pipes: dict[str, int], line: LineHandler) -> None:
        """Starts to read the pipes.

        Args:
            loop: What calls back.
            pid: Its process id.
            pipes: The descriptors to read from, by the stream's name.
            line: Gets what it prints itself, and what it forwards.
        """
        self.pid = pid
        self.status: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self._ended_at = 0.0
        self._loop = loop
        self._line = line
        self._open_fds: set[int] = set()
        for name, fd in pipes.items():
            os.set_blocking(fd, False)
            self._open_fds.add(fd)
            loop.watch(fd, self._reader(name, fd))

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._open_fds

    def ended(self, status: int) -> None:
        """Notes how it ended."""
        self.status = status
        self._ended_at = time.monotonic()

    def sweep(self, now: float) -> None:
        """Closes its pipes some time after its end: something may still hold them."""
        if self.status is not None and now >= self._ended_at + 2 * DRAIN_SECONDS:
            for fd in list(self._open_fds):
                self._close(fd)

    def _reader(self, name: str, fd: int) -> Callable[[], None]:
        rest = b""

        def ready() -> None:
            nonlocal rest
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            *lines, rest = (rest + data).split(b"\n")
            if not data and rest:
                lines, rest = [rest], b""
            with self._loop.guard_output():
                for text in lines:
                    self._line(name, text)
            if not data:
                self._close(fd)

        return ready

    def _close(self, fd: int) -> None:
        self._loop.unwatch(fd)
        os.close(fd)
        self._open_fds.discard(fd)
