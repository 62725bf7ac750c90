"""Jobs of `faulted_rank.py`: started, waited for until all ranks are at it, and looked at after."""

from __future__ import annotations

import json
import os
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
SECONDS = 100


@dataclass
class FaultedJob:
    """One job. `told` is what each rank said at its end, by rank."""

    job: Job
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
            str(go), **{"HOROACC_GRACE_SECONDS": "30"} | variables,
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
        if "pid" in said:
            self.pids[int(rank[1:])] = said["pid"]
        else:
            self.told[int(rank[1:])] = said

    def wait_for(self, true: Any, what: str, seconds: float = SECONDS) -> None:
        """Until something is so that the ranks' output tells."""
        with self._news:
            assert self._news.wait_for(true, seconds), (what, self.out, self.err)

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to one rank's process."""
        os.kill(self.pids[rank], number)

    def warnings(self) -> list[str]:
        """What the core has warned of so far, without who says so and when."""
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
        for pid in self.pids.values():  # a stopped rank must not outlive a test that failed
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


class Holdups:
    """How long this machine held up somebody who only wanted to go on after a short sleep.

    What has to happen within a time on a machine with nothing else to do may take as many turns of
    waiting for a processor as it has steps: here a watcher's look, its news to the others, their
    waking, and Python's way out of the call.
    """

    TURNS = 20

    def __init__(self) -> None:
        self._worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Holdups:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.02):
            now = time.monotonic()
            self._worst = max(self._worst, now - before - 0.02)
            before = now

    def allow(self, seconds: float) -> float:
        """What a time that an idle machine keeps becomes on this one."""
        return seconds + self.TURNS * self._worst


# The fault matrix's bound for a rank that is killed: the worst case.
NOTICE_SECONDS = 3.0


def expect_told(
    faulted: FaultedJob, size: int, victim: int, since_ns: int | None, within: float = 0.0
) -> list[dict[str, Any]]:
    """The errors of all ranks but the victim's, which name it and came in time: by the clock that
    all processes of the machine share, which each rank looked at when it was told."""
    assert sorted(faulted.told) == sorted({*range(size)} - {victim}), (faulted.told, faulted.err)
    told = list(faulted.told.values())
    for error in told:
        if faulted.phase == "shutdown" and "error" not in error:
            continue  # it had left by then
        assert error.get("culprit") == victim, error
        assert isinstance(error["collective"], int) or error["collective"] is None, error
        if since_ns is not None:
            assert (error["at_ns"] - since_ns) / 1e9 < within, error
    return told
