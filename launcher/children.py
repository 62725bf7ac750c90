"""The launcher's child processes, ranks or an mpirun: their pipes, process groups and ends."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from horoacc.launcher.processes import signal_group

_CHUNK = 1 << 16
# After a process's end: for its own children to end, and for its pipes to run dry.
DRAIN_SECONDS = 1.0

LineHandler = Callable[[str, bytes], None]
"""Takes the name of a stream and a line that came on it."""


def ending(status: int) -> str:
    """Says how a process ended, by its exit code or its signal, negative."""
    if status > 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", which the kernel sends when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def start_piped(
    command: list[str],
    environ: Mapping[str, str],
    stdin: int | None,
    prepare: Callable[[], None],
    passed: Sequence[int] = (),
) -> tuple[int, int, int]:
    """Starts a program as the head of a session; `prepare` runs in the new process before it.

    Returns:
        Its process id, and the ends to read from of its stdout and its stderr.
    """
    stdout, stdout_end = os.pipe()
    stderr, stderr_end = os.pipe()
    try:
        child = subprocess.Popen(
            command,
            env=environ,
            stdin=stdin,
            stdout=stdout_end,
            stderr=stderr_end,
            pass_fds=passed,
            start_new_session=True,
            preexec_fn=prepare,
        )
    except OSError:
        os.close(stdout)
        os.close(stderr)
        raise
    finally:
        os.close(stdout_end)
        os.close(stderr_end)
    child.returncode = 0  # the supervisor waits for it, not this object
    return child.pid, stdout, stderr


class Loop(Protocol):
    """The supervisor, as far as it reads for a child."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Calls `ready` whenever `fd` can be read."""

    def unwatch(self, fd: int) -> None:
        """Ends `watch`."""

    def watch_output(self, fd: int, ready: Callable[[], None]) -> None:
        """As `watch`; but what is printed may have to wait for this program's own reader."""


class Stream(Protocol):
    """Takes what a rank prints to its stdout or stderr."""

    tail: deque[bytes]
    """The last lines."""

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the pipe; none are its end."""

    def end(self) -> None:
        """No more bytes come."""


class Rank:
    """A rank's process, the head of its process group."""

    def __init__(
        self, loop: Loop, number: int, group: int, pipes: Mapping[str, tuple[int, Stream]]
    ) -> None:
        """Starts to read `pipes`: by a stream's name, the descriptor to read and the stream."""
        self.number = number
        self.group = group
        """Its process id, which is also its process group's."""
        self.streams = {name: stream for name, (_, stream) in pipes.items()}
        self.status: int | None = None
        """Exit code, negative for a signal; None while it runs."""
        self.ended_at = 0.0
        self._group_gone = False
        self._loop = loop
        self._pipes = _Pipes(loop, {fd: stream.feed for fd, stream in pipes.values()})

    @property
    def draining(self) -> bool:
        """Whether it ended while its pipes are still open."""
        return self.status is not None and self._pipes.open

    @property
    def finished(self) -> bool:
        """Whether it ended and all of its output has been read."""
        return self.status is not None and not self._pipes.open

    def sweep(self, now: float, held: bool) -> bool:
        """Ends the rest of its process group, and closes its pipes, some time after its end.

        Args:
            now: The time.
            held: Whether the pipes have to wait for this program's reader; then they stay open.

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
        if self._pipes.open and not held and now >= self.ended_at + 2 * DRAIN_SECONDS:
            # A process that left the group still holds the pipe; it is killed at the end.
            self._pipes.close()
            for stream in self.streams.values():
                stream.end()
        return gone


class MpirunProcess:
    """An mpirun, the head of its process group."""

    def __init__(self, loop: Loop, pid: int, pipes: dict[str, int], line: LineHandler) -> None:
        """Starts to read `pipes`, by their streams' names; `line` gets the lines that come."""
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
        """Starts to read; a taker gets the bytes of its descriptor, and none at the end."""
        self._loop = loop
        self._open: set[int] = set()
        for fd, take in takers.items():
            os.set_blocking(fd, False)
            self._open.add(fd)
            loop.watch_output(fd, functools.partial(self._read, fd, take))

    @property
    def open(self) -> bool:
        """Whether a pipe has not come to its end."""
        return bool(self._open)

    def close(self) -> None:
        """Ends the reading: a process that outlives its parent may hold a pipe for ever."""
        for fd in list(self._open):
            self._close(fd)

    def _read(self, fd: int, take: Callable[[bytes], None]) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        take(data)
        if not data:
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._loop.unwatch(fd)
        os.close(fd)
        self._open.discard(fd)


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
