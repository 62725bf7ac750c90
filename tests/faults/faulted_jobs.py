"""Jobs of `faulted_rank.py`: starts one, waits for its phase, and checks its end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher_jobs import Job

PHASES = ("idle", "negotiating", "collective")
RANK = str(Path(__file__).with_name("faulted_rank.py"))
SECONDS = 300


@dataclass
class FaultedJob:
    """One job. `told` is the last line of each rank, by rank."""

    job: Job
    coming: dict[int, int] = field(default_factory=dict)  # process numbers before init(), by rank
    pids: dict[int, int] = field(default_factory=dict)
    told: dict[int, dict[str, Any]] = field(default_factory=dict)
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    def start(
        self, size: int, phase: str, victim: int, go: Path, *flags: str, **variables: str
    ) -> None:
        """Starts the ranks, and returns when all are where the phase wants them."""
        self.size, self.phase, self.go = size, phase, go
        self._news = threading.Condition()
        self.process = self.job.start(
            *(flags or ("--tcp",)), "-np", str(size), sys.executable, RANK, phase, str(victim),
            str(go), **{"HOROACC_GRACE_SECONDS": "10"} | variables,
        )  # fmt: skip
        assert self.process.stdout and self.process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._hear)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.err.append)),
        ]
        for reader in self._readers:
            reader.start()

    def await_phase(self) -> None:
        """Until every rank is where the phase wants it."""
        self.wait_for(lambda: len(self.pids) == self.size, "the ranks' start")

    def _read(self, pipe: Any, hear: Any) -> None:
        for line in pipe:
            with self._news:
                hear(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _hear(self, line: str) -> None:
        self.out.append(line)
        rank, mark, rest = line.partition("] ")
        if not mark or not rest.startswith("{"):
            return
        said = json.loads(rest)
        if "comes" in said:
            self.coming[int(rank[1:])] = said["pid"]
        elif "pid" in said:
            self.pids[int(rank[1:])] = said["pid"]
        else:
            self.told[int(rank[1:])] = said

    def wait_for(self, true: Any, what: str, seconds: float = SECONDS) -> None:
        """Until something is so that the ranks' output tells."""
        with self._news:
            assert self._news.wait_for(true, seconds), (what, self.out, self.err)

    def await_death(self, rank: int) -> int:
        """Waits until a rank's process, which ends itself, has ended; gives when that was known."""
        self.wait_for(lambda: rank in self.coming, "a rank's start")
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self.coming[rank])
            try:
                assert select.select([process], [], [], SECONDS)[0], (rank, self.out, self.err)
            finally:
                os.close(process)
        return time.monotonic_ns()

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to one rank's process."""
        os.kill(self.pids[rank], number)

    def warnings(self) -> list[str]:
        """The core's warnings so far, without rank and time."""
        return [line.split(" warning: ", 1)[1] for line in self.err if " warning: " in line]

    def end(self) -> int:
        """Waits for the end of everything, and that nothing is left of it."""
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        self.job.expect_nothing_left()
        for rank, told in self.told.items():
            assert told["left"] == [], (rank, told)
        return code

    def __del__(self) -> None:
        # A stopped rank must not outlive a test that failed.
        for pid in {*self.coming.values(), *self.pids.values()}:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


# The fault matrix's bound for a rank that is killed: the worst case.
NOTICE_SECONDS = 3.0


def expect_told(
    faulted: FaultedJob, size: int, victim: int, since_ns: int | None, within: float = 0.0
) -> list[dict[str, Any]]:
    """The errors of all ranks but the victim, which name it and came in time, by the machine's one
    clock, which each rank read when it got the error.

    Without `since_ns` the time counts from when each of them last called, which was before the
    victim ended or not long after.
    """
    assert sorted(faulted.told) == sorted({*range(size)} - {victim}), (faulted.told, faulted.err)
    told = list(faulted.told.values())
    for error in told:
        if faulted.phase == "shutdown" and "error" not in error:
            continue  # it had left by then
        assert error.get("culprit") == victim, error
        assert isinstance(error["collective"], int) or error["collective"] is None, error
        took = (error["at_ns"] - (error["called_ns"] if since_ns is None else since_ns)) / 1e9
        assert within == 0.0 or took < within, (took, error)
    return told
