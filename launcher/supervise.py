"""Supervises the ranks of one job: their output, their end, and that no process of them is left.

One loop, one thread. It sleeps in a selector on the ranks' pipes, on the connections of shims and
on a pipe into which signals (a child ended, Ctrl-C) are written in the order they came.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from horoacc.launcher import sinks
from horoacc.launcher.children import DRAIN_SECONDS, LineHandler, MpirunProcess, Rank, ending
from horoacc.launcher.output import Printer, RankStream
from horoacc.launcher.processes import Watchdog, descendants, kill_descendants, signal_group

# How long mpirun may take to end after its last rank did.
_MPIRUN_SECONDS = 10.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# For a reader of the output that does not read, after a signal.
_INTERRUPTED_SECONDS = 0.5
# Between looks whether such a reader has stalled.
_LOOK_SECONDS = 0.1
_GONE_SECONDS = 1.0  # between SIGKILL and the end of a process


class Supervisor:
    """Runs a job to its end and knows how it ended."""

    def __init__(self, printer: Printer, size: int, grace: float, folder: str = "") -> None:
        self.printer = printer
        self.size = size
        self.ranks: dict[int, Rank] = {}
        self.first_failed: Rank | None = None
        self.stopping: int | None = None
        """The signal that is ending the job, if one is."""
        self.interrupted: int | None = None
        """The signal that was sent to this process."""
        self.mpirun: MpirunProcess | None = None
        """mpirun, if the ranks are not this process's children."""
        self._told_elsewhere: list[tuple[int, str, int]] = []  # by srun, of ranks on other hosts
        self._grace = grace
        self._folder = folder
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._killed = False
        self._outputs: dict[int, Callable[[], None]] = {}  # what ranks print
        self._held = False  # these are not read, because nobody reads what this program prints
        self._unwritten: set[int] = set()
        self.timers: list[Callable[[float], float]] = []
        """Called whenever the loop wakes, with the time; each gives the next time that it wants."""
        self._next_timer = 0.0
        self._remote: dict[tuple[int, str], RankStream] = {}
        self._children: dict[int, Callable[[int], None]] = {}
        self._ends = select.epoll()  # of children, in the order of their ends
        self._pidfds: dict[int, int] = {}  # their numbers, by descriptor
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = socket.socketpair()
        self._wake.setblocking(False)
        wake_end.setblocking(False)
        self._wake_end = wake_end
        self.watchdog = Watchdog()
        self.closing = contextlib.ExitStack()
        """Closes what is part of this loop, when the job is over."""
        for number in (*_STOPPING, signal.SIGCHLD):
            # What nohup, or a shell for a program in the background, has it ignore stays ignored.
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_end.fileno(), warn_on_full_buffer=False)
        self.watch(self._wake.fileno(), self._read_signals)

    # --- called by the code that starts ranks -----------------------------------------------

    def watch(self, fd: int, ready: Callable[[], None], writes: bool = False) -> None:
        """Calls `ready` whenever `fd` can be read; or, if this process writes there, be written."""
        event = selectors.EVENT_WRITE if writes else selectors.EVENT_READ
        self._selector.register(fd, event, ready)

    def watch_output(self, fd: int, ready: Callable[[], None]) -> None:
        """As `watch`; but what is printed may have to wait for this program's own reader."""
        self._outputs[fd] = ready
        if not self._held:
            self.watch(fd, ready)

    def unwatch(self, fd: int) -> None:
        """Ends `watch` and `watch_output`."""
        output = self._outputs.pop(fd, None)
        if output is None or not self._held:
            self._selector.unregister(fd)

    def on_child_end(self, pid: int, ended: Callable[[int], None]) -> None:
        """Calls `ended` with the status of a child of this process."""
        self._children[pid] = ended
        with contextlib.suppress(OSError):  # a kernel or sandbox without them
            pidfd = os.pidfd_open(pid)
            self._pidfds[pidfd] = pid
            self._ends.register(pidfd, select.EPOLLIN)

    def stream(self, rank: int, name: str) -> RankStream:
        """A new stream of a rank, with its copy in a file if one was asked for."""
        copy = Path(self._folder, f"rank.{rank}", name) if self._folder else None
        return RankStream(rank, name, self.printer, copy)

    def add_rank(self, number: int, pid: int, stdout: int, stderr: int) -> None:
        """Takes charge of a rank that was started as the head of a process group."""
        pipes = {
            name: (fd, self.stream(number, name))
            for name, fd in (("stdout", stdout), ("stderr", stderr))
        }
        self.ranks[number] = Rank(self, number, pid, pipes)
        self.watchdog.add(pid)
        if self.stopping is not None:
            signal_group(pid, self.stopping)

    def add_mpirun(self, pid: int, stdout: int, stderr: int, line: LineHandler) -> None:
        """Takes charge of mpirun; `line` gets the lines that it prints or forwards."""
        self.mpirun = MpirunProcess(self, pid, {"stdout": stdout, "stderr": stderr}, line)
        self.watchdog.add(pid)
        self.on_child_end(pid, self.mpirun.ended)

    def remote_line(self, number: int, name: str, text: bytes) -> None:
        """Takes a line of a rank on another host, which mpirun has forwarded."""
        key = (number, name)
        if key not in self._remote:
            self._remote[key] = self.stream(number, name)
        self._remote[key].feed(text + b"\n")

    def rank_failed_elsewhere(self, number: int, host: str, status: int) -> None:
        """Notes that a rank on another host has failed, if srun tells of it.

        srun ends the others at once; but for those of a node that is gone it may wait for minutes.
        """
        if self.stopping is None:
            self._told_elsewhere.append((number, host, status))
            self._stop_at = min(self._stop_at, time.monotonic() + self._grace)

    @property
    def failed_elsewhere(self) -> tuple[int, str, int] | None:
        """Rank, host and status of the one on another host that failed first, if srun has told.

        srun may tell of its end later than of those that have noticed it, or that srun has ended.
        """

        def follows(told: tuple[int, str, int]) -> bool:
            stream = self._remote.get((told[0], "stderr"))
            noticed = stream is not None and any(b"PeerLost" in line for line in stream.tail)
            return noticed or told[2] == -signal.SIGTERM

        return min(self._told_elsewhere, key=follows, default=None)

    def rank_ended(self, number: int, status: int) -> None:
        """Notes how a rank ended; after the first failure the others get the time of grace."""
        rank = self.ranks[number]
        if rank.status is not None:
            return
        rank.status = status
        rank.ended_at = time.monotonic()
        if status != 0 and self.first_failed is None and self.stopping is None:
            self.first_failed = rank
            if status == -signal.SIGTERM and self.mpirun and len(self.ranks) < self.size:
                self.stop(signal.SIGTERM)  # mpirun ends the job, for a rank elsewhere has failed
            else:
                self._await_survivors(rank)
        if self.mpirun is not None and all(
            number in self.ranks and self.ranks[number].status is not None
            for number in range(self.size)
        ):
            # No rank is left for mpirun to wait for.
            self._kill_at = min(self._kill_at, rank.ended_at + _MPIRUN_SECONDS)

    def _await_survivors(self, failed: Rank) -> None:
        """Lets the others save what they have, in their `except` blocks, and end by themselves."""
        self._stop_at = time.monotonic() + self._grace
        if self.holds_ends:
            self.printer.say(
                f"rank {failed.number} {ending(failed.status or 0)}; the other ranks have "
                f"{self._grace:g} s to end by themselves"
            )

    @property
    def holds_ends(self) -> bool:
        """Whether mpirun must not see the end of a rank yet: it would end the others at once."""
        if self.first_failed is None or self._killed:
            return False
        unseen = len(self.ranks) < self.size and self.stopping is None
        return unseen or any(rank.status is None for rank in self.ranks.values())

    def stop(self, number: int) -> None:
        """Asks every rank to end; ranks that have not after the time of grace are killed."""
        self.stopping = number
        self._stop_at = float("inf")
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace)
        alive = [rank.group for rank in self.ranks.values() if rank.status is None]
        self.watchdog.note_segments(set(alive))
        for group in alive:
            signal_group(group, number)
        if self.mpirun is not None and len(self.ranks) < self.size:
            # Some ranks are on other hosts or not there yet: only mpirun reaches those.
            signal_group(self.mpirun.pid, signal.SIGTERM)

    # --- the loop -----------------------------------------------------------------------------

    def run(self) -> None:
        """Returns when every process of the job is gone."""
        try:
            while not self._finished() or self._awaits_reader():
                self._heed_reader()
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                self._on_time()
            self.printer.give_up()  # what a reader that has stalled has not taken
        finally:
            self.abandon()

    def _awaits_reader(self) -> bool:
        """Whether output is left that its reader is about to read."""
        patience = sinks.STALL_SECONDS if self.interrupted is None else _INTERRUPTED_SECONDS
        return self.printer.awaits(patience)

    def _heed_reader(self) -> None:
        """Goes on writing when the reader of this program's output can read.

        While it is far behind, ranks that print wait for it, unless it has stalled or the job is
        to end. If it is gone the job ends, as SIGPIPE would end a program.
        """
        if self.printer.closed and self.interrupted is None:
            self.interrupted = signal.SIGPIPE
            self.stop(signal.SIGTERM)
        unwritten = self.printer.unwritten
        for fd in self._unwritten - unwritten:
            self._selector.unregister(fd)
        for fd in unwritten - self._unwritten:
            self._selector.register(fd, selectors.EVENT_WRITE, self.printer.flush)
        self._unwritten = unwritten
        hold = self.printer.full and self.stopping is None
        if hold != self._held:
            self._held = hold
            for fd, ready in self._outputs.items():
                if hold:
                    self._selector.unregister(fd)
                else:
                    self.watch(fd, ready)

    def abandon(self) -> None:
        """Kills all processes that are left of the job, and closes everything."""
        self.closing.close()
        for stream in self._remote.values():
            stream.end()
        kill_descendants(spared=[self.watchdog.pid])
        until = time.monotonic() + _GONE_SECONDS
        while descendants(os.getpid(), [self.watchdog.pid]) and time.monotonic() < until:
            self._reap()  # a signal is not yet an end, and nothing is to outlive this program
            time.sleep(0.002)
        self.watchdog.dismiss()
        self._reap()
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._ends.close()
        for pidfd in self._pidfds:
            os.close(pidfd)
        self._pidfds.clear()
        self._wake.close()
        self._wake_end.close()

    def _finished(self) -> bool:
        complete = self.mpirun.finished if self.mpirun else len(self.ranks) == self.size
        return complete and all(rank.finished for rank in self.ranks.values())

    def _timeout(self) -> float | None:
        """How long the loop may sleep if nothing happens."""
        ended = self.mpirun is not None and self.mpirun.status is not None
        draining = ended or any(rank.draining for rank in self.ranks.values())
        limit = 0.05 if draining else _LOOK_SECONDS if self._unwritten else float("inf")
        shortest = min(
            limit, min(self._stop_at, self._kill_at, self._next_timer) - time.monotonic()
        )
        return None if shortest == float("inf") else max(shortest, 0.0)

    def _on_time(self) -> None:
        now = time.monotonic()
        if now >= self._stop_at:
            self.stop(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill(now)
        for rank in self.ranks.values():
            if rank.status is not None and rank.sweep(now, self._held):
                self.watchdog.remove(rank.group)
        if self.mpirun is not None and not self._held:
            self.mpirun.sweep(now)
        self._next_timer = min([timer(now) for timer in self.timers], default=float("inf"))

    def _kill(self, now: float) -> None:
        """Ends by force the processes that did not end when they were asked."""
        self._kill_at = float("inf")
        for rank in self.ranks.values():
            if rank.status is None:
                signal_group(rank.group, signal.SIGKILL)
        if self.mpirun is not None and self.mpirun.status is None:
            # Once nicely, so that it ends the ranks of other hosts and removes its files.
            signal_group(self.mpirun.pid, signal.SIGKILL if self._killed else signal.SIGTERM)
            if not self._killed:
                self._kill_at = now + 2 * DRAIN_SECONDS
        self._killed = True

    # --- signals ------------------------------------------------------------------------------

    def _read_signals(self) -> None:
        for number in self._wake.recv(4096):
            if number == signal.SIGCHLD:
                self._reap()
            elif number in _STOPPING:
                if self.interrupted is not None:
                    self._kill_at = time.monotonic()  # asked twice: no time of grace
                self.interrupted = self.interrupted or number
                self.stop(number)

    def _reap(self) -> None:
        """Collects ended children. Of several at once, one that a signal killed comes first, and
        then they come in the order of their ends: the others most likely failed because of it.
        """
        ended: list[tuple[int, int]] = []
        order: dict[int, int] = {}
        for pidfd, _ in self._ends.poll(0):
            order[self._pidfds.pop(pidfd)] = len(order)
            os.close(pidfd)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended.append((os.waitstatus_to_exitcode(status), pid))
        for code, pid in sorted(ended, key=lambda e: (e[0] >= 0, order.get(e[1], len(order)))):
            if report := self._children.pop(pid, None):
                report(code)
