"""Writes the lines of many ranks to one terminal or file, whole and with their rank.

A line is written with one call after it is complete, so that no two ranks share one. Only rank 0
may also draw a line that is not complete: its progress bar, redrawn after each carriage return.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

# A program that never ends its line must not fill this process's memory.
_LONGEST_LINE = 8 << 20
_TAIL_LINES = 20
# Readable on light and on dark backgrounds; not red, which means an error.
_COLOURS = (36, 32, 35, 34, 33, 96, 92, 95, 94, 93)


@dataclass
class Sink:
    """Where lines go: this program's stdout or stderr."""

    fd: int
    terminal: bool
    colour: bool
    identity: tuple[int, int]
    """Device and inode, to know that stdout and stderr are the same file."""

    @staticmethod
    def open(fd: int, environ: Mapping[str, str]) -> Sink:
        """A sink for a file descriptor; coloured only on a terminal, and not under NO_COLOR."""
        terminal = os.isatty(fd)
        plain = environ.get("NO_COLOR", "") != "" or environ.get("TERM", "") == "dumb"
        state = os.fstat(fd)
        return Sink(fd, terminal, terminal and not plain, (state.st_dev, state.st_ino))

    def write(self, data: bytes) -> None:
        """Writes all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]


class TextSink(Sink):
    """Lines go to a stream of Python's, such as a notebook's."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(-1, False, False, (-1, id(stream)))
        self._stream = stream

    def write(self, data: bytes) -> None:
        """Writes all of it."""
        self._stream.write(data.decode(errors="replace"))
        self._stream.flush()


class Printer:
    """Prefixes lines with their rank and keeps rank 0's progress bar below them."""

    def __init__(
        self,
        environ: Mapping[str, str],
        timestamps: bool = False,
        clock: Callable[[], float] = time.time,
        streams: tuple[TextIO, TextIO] | None = None,
    ) -> None:
        """Prints to this process's stdout and stderr, or to two streams in their place."""
        if streams is None:
            self._sinks = {"stdout": Sink.open(1, environ), "stderr": Sink.open(2, environ)}
        else:
            self._sinks = {"stdout": TextSink(streams[0]), "stderr": TextSink(streams[1])}
        self._timestamps = timestamps
        self._clock = clock
        self._bar: tuple[Sink, bytes] | None = None

    def line(self, rank: int, stream: str, text: bytes) -> None:
        """Writes a complete line of a rank; `text` has no line end."""
        sink = self._sinks[stream]
        self._write_line(sink, self._prefix(sink, rank) + text + b"\n")

    def plain(self, stream: str, text: bytes) -> None:
        """Writes a line without a rank."""
        self._write_line(self._sinks[stream], text + b"\n")

    def say(self, text: str) -> None:
        """Writes a message of the launcher itself to stderr."""
        for line in text.splitlines():
            self.plain("stderr", b"horoaccrun: " + line.encode(errors="replace"))

    def bar(self, rank: int, stream: str, text: bytes) -> None:
        """Draws a rank's line that is not complete yet over the one drawn before."""
        sink = self._sinks[stream]
        if self._bar and self._bar[0] is not sink:
            self._leave_bar()
        drawn = self._prefix(sink, rank) + text
        self._bar = (sink, drawn)
        sink.write(b"\r" + drawn)

    def end_bar(self, rank: int, stream: str, text: bytes) -> None:
        """Completes the line that was drawn as a bar."""
        self.bar(rank, stream, text)
        self._leave_bar()

    def _prefix(self, sink: Sink, rank: int) -> bytes:
        name = b"%d" % rank if rank >= 0 else b"new"  # a process that has no rank yet
        mark = b"[%s] " % name
        if sink.colour:
            mark = b"\x1b[%dm[%s]\x1b[0m " % (_COLOURS[rank % len(_COLOURS)], name)
        if self._timestamps:
            now = self._clock()
            clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
            mark += f"{clock}.{int(now * 1000) % 1000:03d} ".encode()
        return mark

    def _write_line(self, sink: Sink, line: bytes) -> None:
        bar = self._bar
        if bar is None or (not bar[0].terminal and bar[0].identity != sink.identity):
            sink.write(line)
        elif bar[0].terminal and sink.terminal:
            # One write, so that the bar does not flicker.
            sink.write(b"\r\x1b[K" + line + bar[1])
        else:
            self._leave_bar()
            sink.write(line)

    def _leave_bar(self) -> None:
        if self._bar:
            self._bar[0].write(b"\n")
            self._bar = None


class RankStream:
    """Cuts one stream of a rank into lines."""

    def __init__(self, rank: int, name: str, printer: Printer, copy: str | None = None) -> None:
        """`copy` names a file that also gets every byte as it came."""
        self.rank = rank
        self.name = name
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._printer = printer
        self._rest = b""
        self._in_bar = False
        self._drawn = b""
        self._copy_path = copy
        self._copy = open(copy, "wb", buffering=0) if copy else None  # noqa: SIM115

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the pipe; none are its end."""
        if not data:
            self.end()
            return
        self._write_copy(data)
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._complete(line.removesuffix(b"\r"))
        self._rest = self._partial(rest)
        if len(self._rest) > _LONGEST_LINE:
            self._complete(self._rest)
            self._rest = b""

    def end(self) -> None:
        """Writes the rest, a last line without an end."""
        if self._rest.strip(b"\r") or self._in_bar:
            self._complete(self._rest)
        self._rest = b""
        if self._copy:
            self._copy.close()
            self._copy = None

    def _write_copy(self, data: bytes) -> None:
        """A file on a full disk must not end the job."""
        if self._copy is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._copy.write(view) :]
        except OSError as error:
            self._copy.close()
            self._copy = None
            self._printer.say(
                f"cannot write to '{self._copy_path}' any more ({error.strerror}): the "
                f"{self.name} of rank {self.rank} goes only here from now on"
            )

    def _complete(self, line: bytes) -> None:
        # A terminal would show the last part of a line with carriage returns.
        shown = [part for part in line.split(b"\r") if part]
        last = shown[-1] if shown else b""
        self.tail.append(last)
        if self._in_bar:
            self._printer.end_bar(self.rank, self.name, last)
        else:
            self._printer.line(self.rank, self.name, last)
        self._in_bar = False
        self._drawn = b""

    def _partial(self, rest: bytes) -> bytes:
        """Draws rank 0's bar; returns the part of an incomplete line that must be kept."""
        if b"\r" not in rest and not self._in_bar:
            return rest
        shown = [part for part in rest.split(b"\r") if part]
        if self.rank == 0:
            for part in shown:
                if part != self._drawn:
                    self._printer.bar(self.rank, self.name, part)
                self._drawn = part
            self._in_bar = bool(shown) or self._in_bar
        # A bar that ends in \r is complete: the next part replaces it.
        if not shown:
            return b""
        return shown[-1] + (b"\r" if rest.endswith(b"\r") else b"")
