"""The ranks of one system, waiting for the driver's word.

All systems' ranks live at the same time, and only one group works at a time: the others sleep in a
read of a socket. So every system meets the same machine, whatever else happens on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from benchmarks import systems
from horoacc.launcher import segments
from horoacc.launcher.processes import descendants, die_with_parent

_START_SECONDS = 180.0
_RUN_SECONDS = 300.0
_STOP_SECONDS = 15.0


class GroupFailed(RuntimeError):
    """A rank of a system died, raised, or did not answer."""


class Group:
    """The processes of one system. The constructor starts them, `join` waits until they are up."""

    def __init__(self, system: str, ranks: int, bound: bool = True, **extra: str) -> None:
        """Starts the ranks.

        Args:
            system: As `systems.launch` calls it.
            ranks: How many.
            bound: Give each a core of its own, if there are enough. Who trains has a second thread,
                which must find the core that is free.
            extra: More variables for them.
        """
        self.system = system
        self.ranks = ranks
        self.broken = False
        """It failed: what its ranks do now, nobody knows."""
        self._folder = Path(tempfile.mkdtemp(prefix="benchmarks-"))
        self._links: list[Connection] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._segments: set[segments.Segment] = set()
        key = secrets.token_bytes(16)
        address = str(self._folder / "driver")
        program = [sys.executable, "-m", "benchmarks.rank", system, address]
        try:
            arena = extra.get("HOROACC_ARENA", "all")
            request = systems.Request(ranks, program, self._folder, arena, bound=bound)
            self.launch = systems.launch(system, request)
            self._listener = Listener(address, "AF_UNIX", backlog=max(16, ranks), authkey=key)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        base = systems.environ() | {"BENCH_KEY": key.hex()} | extra
        self._log = self._folder / "output"
        with self._log.open("wb") as log:
            for process in self.launch.processes:
                self._children.append(
                    subprocess.Popen(
                        process.command, env=base | process.environ, cwd=systems.ROOT,
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM),
                    )
                )  # fmt: skip

    @property
    def processes(self) -> int:
        """How many processes answer."""
        return 1 if self.system == "bound" else self.ranks

    def join(self) -> Group:
        """Waits until every rank has joined its system's job.

        Raises:
            GroupFailed: One could not, or not in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        # Listener has no time limit of its own; the socket below it has.
        self._listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
        arrived: list[Connection] = []
        while len(arrived) < self.processes:
            try:
                arrived.append(self._listener.accept())
            except TimeoutError:
                self._check(deadline)
        self._listener.close()
        self._links = arrived
        hellos = self._answers(_START_SECONDS)
        self._note_segments()
        self._links = [arrived[hellos.index(rank)] for rank in range(self.processes)]
        return self

    def run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> list[Any]:
        """Calls a function of a module on every rank.

        Args:
            function: A function whose first parameter is the rank's `benchmarks.rank.Rank`.
            arguments: Its other arguments.
            named: The same.

        Returns:
            What it returned, by rank.

        Raises:
            GroupFailed: It raised somewhere, a rank died, or one took too long.
        """
        order = (function.__module__, function.__qualname__, arguments, named)
        for link in self._links:
            try:
                link.send(order)
            except OSError as error:
                raise self._failure("a rank is gone") from error
        return self._answers(_RUN_SECONDS)

    def _answers(self, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(self._links):
            waiting = [link for index, link in enumerate(self._links) if index not in answers]
            for link in wait(waiting, 1.0):
                index = self._links.index(link)  # type: ignore[arg-type]
                try:
                    kind, value = self._links[index].recv()
                except (EOFError, OSError) as error:
                    raise self._failure("a rank died") from error
                if kind == "failed":
                    raise self._failure(f"a rank failed: {value}")
                answers[index] = value
            if len(answers) < len(self._links):
                self._check(deadline)
        return [answers[index] for index in range(len(self._links))]

    def _check(self, deadline: float) -> None:
        if any(child.poll() is not None for child in self._children):
            raise self._failure("a process ended")
        if time.monotonic() > deadline:
            raise self._failure("it hangs")

    def _note_segments(self) -> None:
        """Remembers MPI's shared memory, which stays where its ranks are killed."""
        for child in self._children:
            self._segments |= segments.mapped_by(descendants(child.pid))

    def _failure(self, what: str) -> GroupFailed:
        self.broken = True
        self._note_segments()
        return GroupFailed(f"{what}; its output: {self._log.read_text(errors='replace')[-2000:]}")

    def close(self) -> None:
        """Lets the ranks go; kills what is left after a while."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(None)
        self._listener.close()
        deadline = time.monotonic() + (_STOP_SECONDS if self._links else 0.0)
        for child in self._children:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.1, deadline - time.monotonic()))
                    break
                self._note_segments()
                # A launcher's ranks end with it; a rank's own session is its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                deadline = time.monotonic() + 5.0
            child.wait()
        segments.remove(self._segments)
        for link in self._links:
            link.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def groups(
    wanted: list[str],
    ranks: int,
    report_failure: Callable[[str, str], None],
    bound: bool = True,
    **extra: str,
) -> Iterator[dict[str, Group]]:
    """Starts several systems at once and ends them afterwards.

    Args:
        wanted: The systems.
        ranks: How many ranks each gets.
        report_failure: Is told the system and the reason if one cannot be measured.
        bound: As for `Group`.
        extra: More variables for all of them.

    Yields:
        Those that came up, by name.
    """
    started: dict[str, Group] = {}
    try:
        for system in wanted:
            try:
                started[system] = Group(system, ranks, bound, **extra)
            except (systems.Unavailable, OSError) as error:
                report_failure(system, str(error))
        up = {}
        for system, group in started.items():
            try:
                up[system] = group.join()
            except GroupFailed as error:
                report_failure(system, str(error))
        yield up
    finally:
        for group in started.values():
            group.close()
