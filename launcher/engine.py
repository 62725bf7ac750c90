"""mpirun's own process as the launcher sees it, when the ranks are its and not the launcher's."""

from __future__ import annotations

import time
from collections.abc import Callable

from horoacc.launcher.pipes import DRAIN_SECONDS, Loop, Pipes

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
        self._pipes = Pipes(loop, {fd: _splitter(name, line) for name, fd in pipes.items()})

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._pipes.open

    def ended(self, status: int) -> None:
        """Notes how it ended."""
        self.status = status
        self._ended_at = time.monotonic()

    def sweep(self, now: float) -> None:
        """Closes its pipes some time after its end: something may still hold them."""
        if self.status is not None and now >= self._ended_at + 2 * DRAIN_SECONDS:
            self._pipes.close()


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
