"""Elastic jobs: from the kill of a rank to the next completed step, and what newcomers cost.

A job of horoaccrun trains a small model with torch; ranks are killed at random moments, one after
the other, each as soon as its predecessor has been replaced. Nothing is committed. Every step is
logged with the machine's monotonic clock, so the time from a kill to the next step that any rank
completes, and the steps that were done twice, follow from the logs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.records import Records
from benchmarks.systems import environ

RANK = Path(__file__).with_name("elastic_rank.py")
PAUSE = 0.005
HOST_TIMEOUT = 3.0
RATE = 1e9
LEAK_KIB = 1024
"""What memory may vary by: 5 KiB for each of 200 resets."""
_SECONDS = 60.0


@dataclass(frozen=True)
class Step:
    """A line of a rank's log."""

    worker: int
    epoch: int
    batch: int
    size: int
    time: float
    process: tuple[int, ...]
    """Memory in KiB, open files and threads; mostly empty."""


@dataclass(frozen=True)
class Kill:
    """A kill, and the epoch that it ended."""

    time: float
    epoch: int


class ElasticJob:
    """A job of horoaccrun that is being disturbed."""

    def __init__(
        self, folder: Path, ranks: int, least: int, flags: Sequence[str] = (),
        start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.kills: list[Kill] = []
        self._processes: dict[int, int] = {}
        self._ranks = ranks
        self._launcher = start(
            [sys.executable, "-m", "horoacc.launcher.main", "-np", str(ranks), "--min-np",
             str(least), "--failures-per-host", "100000", "--flight-dir", str(folder), *flags,
             sys.executable, str(RANK), str(folder), str(PAUSE)],
            # Programs of two laboratory hosts share /tmp: mpirun's must not find another's files.
            env=environ() | {"TMPDIR": str(folder)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self) -> None:
        self._launcher.send_signal(signal.SIGTERM)
        self._launcher.wait(_SECONDS)

    def await_full(self) -> tuple[int, list[int]]:
        """Waits until all ranks are there; the epoch, and the workers that have done a step."""
        until = time.monotonic() + _SECONDS
        earlier = self.kills[-1].epoch if self.kills else 0
        while time.monotonic() < until:
            last: dict[int, tuple[int, int]] = {}
            for path in self.folder.glob("steps.*"):
                if lines := path.read_bytes().rsplit(b"\n", 2)[:-1]:
                    words = lines[-1].split()
                    last[int(path.suffix[1:])] = int(words[0]), int(words[3])
            epoch = max((epoch for epoch, _ in last.values()), default=0)
            workers = [worker for worker, where in last.items() if where == (epoch, self._ranks)]
            if len(workers) == self._ranks and epoch > earlier:
                return epoch, workers
            if self._launcher.poll() is not None:
                raise RuntimeError(f"the job ended with code {self._launcher.returncode}")
            time.sleep(0.02)
        raise RuntimeError(f"in {_SECONDS:g} s the ranks did not come together")

    def kill(self, draw: random.Random, spared: set[int], at_once: int = 1) -> None:
        """Kills ranks at a moment of chance."""
        epoch, workers = self.await_full()
        self._find_processes()
        time.sleep(draw.uniform(0.02, 0.3))
        victims = draw.sample(sorted(set(workers) - spared), at_once)
        for victim in victims:
            os.kill(self._processes[victim], signal.SIGKILL)
        self.kills.append(Kill(time.monotonic(), epoch))

    def _find_processes(self) -> None:
        """Laboratory hosts number their processes themselves; here are this machine's numbers."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "environ").read_bytes().split(b"\0")
                line = (path / "cmdline").read_bytes().split(b"\0")
                if str(RANK).encode() in line[1:2] and str(self.folder).encode() in line:
                    numbers = [word[15:] for word in words if word.startswith(b"HOROACC_WORKER=")]
                    self._processes[int(numbers[0])] = int(path.name)

    def steps(self) -> list[Step]:
        found = []
        for path in self.folder.glob("steps.*"):
            for line in path.read_text().splitlines():
                epoch, batch, _, size, clock, *process = line.split()
                found.append(
                    Step(int(path.suffix[1:]), int(epoch), int(batch), int(size), float(clock),
                         tuple(map(int, process)))
                )  # fmt: skip
        return sorted(found, key=lambda step: step.time)


def run(records: Records, quick: bool) -> None:
    """Measures deaths of ranks on one host and on two, of a host, and undisturbed jobs."""
    _one_host(records, quick)
    _two_hosts(records, quick)
    _undisturbed(records, quick)


def _one_host(records: Records, quick: bool) -> None:
    for ranks, least, kills, limits in (
        (4, 3, 5 if quick else 100, (0.3, 1.0, 3.0)),
        (16, 12, 2 if quick else 40, (0.0, 1.5, 0.0)),
    ):
        with tempfile.TemporaryDirectory() as folder:
            job = ElasticJob(Path(folder), ranks, least)
            draw = random.Random(1)
            try:
                job.await_full()
                for _ in range(kills):
                    job.kill(draw, set())
                spared = {job.await_full()[1][0]}
                for _ in range(0 if ranks > 4 else kills):  # one process sees all these resets
                    job.kill(draw, spared)
                job.await_full()
            finally:
                job.end()
            _report(records, job, ranks, limits, kills, min(spared))
            checks = Path(folder) / "checks"
            if ranks == 4 and checks.exists():
                times = [float(line) for line in checks.read_text().split()]
                _compare(records, "a check without news, median", statistics.median(times), 10.0,
                         "us")  # fmt: skip


def _two_hosts(records: Records, quick: bool) -> None:
    if reason := missing():
        print(f"no laboratory of hosts: {reason}")
        return
    mpirun = str(Path(sys.executable).parent / "mpirun")
    flags = ("-H", "h1:2,h2:2", "--tcp", "--mpirun", mpirun,
             "--host-timeout-seconds", f"{HOST_TIMEOUT:g}")  # fmt: skip
    draw = random.Random(2)
    kills = 3 if quick else 50
    with tempfile.TemporaryDirectory() as folder, Laboratory(Network(rate=RATE)) as lab:
        job = ElasticJob(Path(folder), 4, 3, flags, lab.hosts["h1"].popen)
        try:
            for _ in range(kills):
                job.kill(draw, set())
            job.await_full()
        finally:
            job.end()
        _report(records, job, 4, (0.5, 0.0, 0.0), kills, 0, "2 hosts, ")
    waits = []
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as folder, Laboratory(Network(rate=RATE)) as lab:
            job = ElasticJob(Path(folder), 4, 2, flags, lab.hosts["h1"].popen)
            try:
                epoch, _ = job.await_full()
                time.sleep(draw.uniform(0.0, 2.0))
                lab.unplug("h2")
                gone = time.monotonic()
                while not (later := [s.time for s in job.steps() if s.epoch > epoch]):
                    if time.monotonic() > gone + _SECONDS:
                        raise RuntimeError("the ranks of the other host do not go on")
                    time.sleep(0.2)
                waits.append(min(later) - gone)
            finally:
                job.end()
    _compare(records, f"a host of two is gone: to the next step, worst of {len(waits)}",
             max(waits), HOST_TIMEOUT + 1.5, "s")  # fmt: skip


def _undisturbed(records: Records, quick: bool) -> None:
    """Steps of a job that could lose ranks, and of one that could not, one after the other."""
    ratios = []
    for _ in range(2 if quick else 11):
        times = []
        for flags in ((), ("--min-np", "2")):
            with tempfile.TemporaryDirectory() as name:
                subprocess.run(
                    [sys.executable, "-m", "horoacc.launcher.main", "-np", "2", *flags,
                     sys.executable, str(RANK), name, "0", "1000" if quick else "4000"],
                    env=environ(), check=True, timeout=_SECONDS,
                )  # fmt: skip
                clocks = [
                    [float(line.split()[4]) for line in path.read_text().splitlines()]
                    for path in Path(name).glob("steps.*")
                ]
            warm = clocks[0][len(clocks[0]) // 4 :]
            times.append(statistics.median(b - a for a, b in itertools.pairwise(warm)))
        ratios.append(times[1] / times[0] - 1)
    _compare(records, f"2 ranks that may die, a step of {1e3 * times[0]:.2f} ms: longer by",
             100 * statistics.median(ratios), 1.0, "%")  # fmt: skip


def _report(
    records: Records, job: ElasticJob, ranks: int, limits: tuple[float, float, float], kills: int,
    spared: int, where: str = "",
) -> None:  # fmt: skip
    steps = job.steps()
    waits = []
    for kill in job.kills:
        after = [step.time for step in steps if step.epoch > kill.epoch and step.time > kill.time]
        waits.append(min(after) - kill.time)
    waits.sort()
    name = f"{where}{ranks} ranks, {len(waits)} kills: "
    figures = {
        "median": statistics.median(waits), "p99": waits[math.ceil(0.99 * len(waits)) - 1],
        "worst": waits[-1],
    }  # fmt: skip
    for (what, seconds), limit in zip(figures.items(), limits, strict=True):
        if limit:
            _compare(records, f"{name}kill to the next step, {what}", seconds, limit, "s")
        else:
            _say(records, f"{name}kill to the next step, {what}", seconds, "s")
    _compare(records, f"{name}steps that a survivor did twice", _repeated(job, steps), 0, "steps")
    pauses = _pauses(steps)
    if pauses:
        for what, seconds in (("median", statistics.median(pauses)), ("worst", max(pauses))):
            _compare(records, f"{name}pause for a newcomer, {what}", seconds, 0.25, "s")
    grown = [step.process for step in steps if step.worker == spared and step.process]
    if len(grown) > 20:
        third = len(grown) // 3
        early, late = (
            [statistics.median(column) for column in zip(*part, strict=True)]
            for part in (grown[third : 2 * third], grown[-third:])
        )
        about = f"{name}growth of a survivor of {len(grown)} resets in the last third: "
        for what, before, after in zip(("KiB", "files", "threads"), early, late, strict=True):
            limit = LEAK_KIB if what == "KiB" else 0
            _compare(records, f"{about}from {before:g}", after - before, limit, what)


def _repeated(job: ElasticJob, steps: list[Step]) -> int:
    """Batches that one process did in two epochs: it had applied them, and they were lost."""
    seen: dict[tuple[int, int], int] = {}
    repeated = 0
    for step in steps:
        key = step.worker, step.batch
        repeated += key in seen and seen[key] != step.epoch
        seen[key] = step.epoch
    return repeated


def _pauses(steps: list[Step]) -> list[float]:
    """From the last step of the fewer ranks to the first of the more, without a step's own time."""
    typical = statistics.median(
        b.time - a.time
        for a, b in itertools.pairwise(steps)
        if a.epoch == b.epoch and a.batch != b.batch
    )
    first: dict[int, Step] = {}
    last: dict[int, Step] = {}
    for step in steps:
        first.setdefault(step.epoch, step)
        last[step.epoch] = step
    return [
        first[epoch].time - last[epoch - 1].time - typical
        for epoch in first
        if epoch - 1 in last and first[epoch].size > last[epoch - 1].size
    ]


def _say(records: Records, what: str, value: float, unit: str) -> None:
    records.write({"figure": what, "value": round(value, 4), "unit": unit})
    print(f"{what}: {value:.4g} {unit}", flush=True)


def _compare(records: Records, what: str, value: float, limit: float, unit: str) -> None:
    met = records.target(what, value, limit, unit, at_most=True)
    print(f"{what}: {value:.4g} {unit}, at most {limit:g}: {met}", flush=True)
