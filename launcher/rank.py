"""A rank's process as the launcher sees it: two pipes, a process group and an end."""

from __future__ import annotations

import signal
from collections.abc import Callable

from horoacc.launcher.output import RankStream
from horoacc.launcher.pipes import DRAIN_SECONDS, Loop, Pipes
from horoacc.launcher.processes import signal_group


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
        self._pipes = Pipes(loop, {fd: _feeder(stream) for fd, stream in pipes.values()})

    @property
    def draining(self) -> bool:
        """Whether it ended while its pipes are still open."""
        return self.status is not None and self._pipes.open

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._pipes.open

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
        if self._pipes.open and now >= self.ended_at + 2 * DRAIN_SECONDS:
            # Something that left the group still holds the pipe; it is killed at the end.
            self._pipes.close()
            with self._loop.guard_output():
                for stream in self.streams.values():
                    stream.end()
        return gone


def _feeder(stream: RankStream) -> Callable[[bytes], None]:
    def take(data: bytes) -> None:
        if data:
            stream.feed(data)
        else:
            stream.end()

    return take
