"""Writes the lines of many ranks to one terminal or file, whole and with their rank.

A line is written with one call after it is complete, so that no two ranks share one. Only rank 0
may also draw a line that is not complete: its progress bar, redrawn after each carriage return.
"""

from __future__ import annotations

import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import TextIO

from horoacc.launcher import sinks
from horoacc.launcher.sinks import DescriptorSink, Sink, TextSink

# A program that never ends its line must not fill this process's memory.
_LONGEST_LINE = 8 << 20
_TAIL_LINES = 20
# Between looks whether a reader has stalled.
_LOOK_SECONDS = 0.1
# Readable on light and on dark backgrounds; not red, which means an error.
_COLOURS = (36, 32, 35, 34, 33, 96, 92, 95, 94, 93)


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
        self._sinks: dict[str, Sink] = {}
        if streams is None:
            for fd, name in ((2, "stderr"), (1, "stdout")):
                self._open(fd, name, environ)
        else:
            self._sinks = {"stdout": TextSink(streams[0]), "stderr": TextSink(streams[1])}
        self._timestamps = timestamps
        self._clock = clock
        self._bar: tuple[Sink, bytes, str] | None = None

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
        if self._bar and self._bar[2] != stream:
            self._leave_bar()
        drawn = self._prefix(sink, rank) + text
        self._bar = (sink, drawn, stream)
        sink.write(b"\r" + drawn)

    def end_bar(self, rank: int, stream: str, text: bytes) -> None:
        """Completes the line that was drawn as a bar."""
        self.bar(rank, stream, text)
        self._leave_bar()

    # --- readers that are slow, and those that are gone ---------------------------------------

    @property
    def full(self) -> bool:
        """Whether ranks are to wait before they print more."""
        return any(sink.full for sink in self._sinks.values())

    @property
    def closed(self) -> bool:
        """Whether a reader is gone."""
        return any(sink.closed for sink in self._sinks.values())

    @property
    def unwritten(self) -> set[int]:
        """The descriptors to watch: `flush` is to be called when one can be written to."""
        return {fd for sink in self._sinks.values() if (fd := sink.unwritten) is not None}

    def awaits(self, seconds: float) -> bool:
        """Whether something is kept, for a reader that has not taken nothing for so long."""
        return any(sink.awaits(seconds) for sink in self._sinks.values())

    def flush(self) -> None:
        """Writes of what is kept as much as is taken without waiting."""
        for sink in self._sinks.values():
            sink.flush()

    def close(self) -> None:
        """Waits for readers that read, as any program that writes does: a signal ends it."""
        if self.unwritten and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
        while self.awaits(sinks.STALL_SECONDS):
            select.select([], list(self.unwritten), [], _LOOK_SECONDS)
            self.flush()
        self.give_up()

    def give_up(self) -> None:
        """Loses what is kept."""
        for stream in ("stdout", "stderr"):  # in this order, since the former's loss is told there
            self._sinks[stream].give_up()

    def _open(self, fd: int, name: str, environ: Mapping[str, str]) -> None:
        plain = environ.get("NO_COLOR", "") != "" or environ.get("TERM", "") == "dumb"

        def fails(why: str) -> None:
            if self._sinks["stderr"] is not self._sinks[name]:
                self.say(f"{name} cannot be written ({why}): lines are lost, and the job goes on")

        sink = DescriptorSink(fd, plain, fails)
        stderr = self._sinks.get("stderr", sink)
        self._sinks[name] = stderr if stderr.identity == sink.identity else sink

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

    def __init__(self, rank: int, name: str, printer: Printer, copy: Path | None = None) -> None:
        """`copy` is a file that also gets every byte as it came."""
        self.rank = rank
        self.name = name
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._printer = printer
        self._rest = b""
        self._in_bar = False
        self._drawn = b""
        self._copy_path = copy
        self._copy: FileIO | None = None
        if copy:
            try:
                copy.parent.mkdir(parents=True, exist_ok=True)
                self._copy = FileIO(copy, "w")
            except OSError as error:
                self._lose_copy(error)

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
        if self._copy is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[self._copy.write(view) :]
        except OSError as error:
            self._copy.close()
            self._copy = None
            self._lose_copy(error)

    def _lose_copy(self, error: OSError) -> None:
        """A full disk, or descriptors that have run out, must not end the job."""
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
