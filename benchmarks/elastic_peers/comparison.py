"""Jobs of HoroACC, torchrun and torchft under the same kills, each at its best settings.

The systems take turns: each has a fresh job for a few kills, in an order that changes every round.
A seed draws how long after all ranks are there the next kill comes, and the place of its victim in
the order of ranks; both are the same for every system. Before the first kill some steps are done
without the pause between steps, and tell what a step costs, against jobs that have nothing against
deaths.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.elastic_peers import jobs
from benchmarks.elastic_peers.jobs import RANKS, Job, Kill, Step, System
from benchmarks.records import Records
from benchmarks.systems import Unavailable

BLOCK = 5
"""Kills of a job."""
DELAYS = 0.2, 2.0
_CLOSE = 1e-3


@dataclass
class Outcome:
    """What a system's jobs did, over all rounds; times in seconds."""

    waits: list[float] = field(default_factory=list)
    """From each kill to the next completed step."""
    full: list[float] = field(default_factory=list)
    """From each kill to the next step of all ranks."""
    redone: list[int] = field(default_factory=list)
    """Steps that a survivor, or an ended one that was not killed, had done, and that came again."""
    wasted: int = 0
    """Batches that were begun by ranks that lived, and not applied."""
    kept: int = 0
    """Processes, of those that were not killed, that went on."""
    steps: list[float] = field(default_factory=list)
    """Of each job, the mean time of a step without kills and pauses."""
    loads: list[float] = field(default_factory=list)
    """The machine's load before each job."""
    changes: int = 0
    """Of the members, in all jobs."""
    own_ends: int = 0
    """Processes that ended by themselves."""


def run(records: Records, quick: bool) -> None:
    """Measures all systems."""
    rounds = 2 if quick else 7
    draw = random.Random(1)
    kills = [(draw.uniform(*DELAYS), draw.randrange(RANKS)) for _ in range(rounds * BLOCK)]
    systems = [jobs.horoacc("HoroACC, plain"), jobs.torchrun("DDP over Gloo, plain", 0)]
    outcomes = {system.name: Outcome() for system in systems}
    for system in systems:  # without these nobody knows how often torchrun's job should save
        _measure(records, system, outcomes, [])
    every = _interval(records, statistics.mean(outcomes["DDP over Gloo, plain"].steps))
    least = ("--min-np", str(jobs.LEAST))
    systems += [
        jobs.horoacc("HoroACC", *least),
        jobs.horoacc("HoroACC, warm spare", *least, "--warm-spares", "1", spares=1),
        jobs.torchrun("torchrun, restarts", every),
    ]
    try:
        systems.append(jobs.torchft())
    except Unavailable as error:
        records.write({"system": "torchft", "ranks": RANKS, "skipped": str(error)})
        print(f"torchft is left out: {error}", file=sys.stderr, flush=True)
    outcomes |= {system.name: Outcome() for system in systems if system.plain}
    for number in range(rounds):
        part = kills[number * BLOCK : (number + 1) * BLOCK]
        for system in draw.sample(systems, len(systems)):
            _measure(records, system, outcomes, part if system.plain else [])
    for system in systems:
        if system.plain and outcomes[system.name].waits:
            _report(records, system, outcomes)


def _interval(records: Records, step: float) -> int:
    """The steps from a checkpoint to the next, by Young's formula for the mean time to a kill."""
    from benchmarks.elastic_peers.ddp_rank import save
    from benchmarks.elastic_peers.task import PAUSE, Task

    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        task = Task(Path(folder))
        task.step(task.model, task.optimizer, 0)
        for batch in range(20):
            began = time.perf_counter()
            save(task, Path(folder) / "checkpoint", batch)
            seconds.append(time.perf_counter() - began)
    cost = statistics.median(seconds)
    every = max(1, round(math.sqrt(2 * cost * statistics.mean(DELAYS)) / (step + PAUSE)))
    _say(records, "torchrun, restarts: a checkpoint costs", 1e3 * cost, "ms")
    _say(records, "torchrun, restarts: steps between two checkpoints", every, "steps")
    return every


def _measure(
    records: Records, system: System, outcomes: dict[str, Outcome], kills: list[tuple[float, int]]
) -> None:
    """Runs one job."""
    outcome = outcomes[system.name]
    outcome.loads.append(machine.load())
    with tempfile.TemporaryDirectory() as folder:
        job: Job | None = None
        try:
            job = system.start(Path(folder))
            job.begin()
            job.hurry()
            for delay, place in kills:
                job.kill(delay, place)
            job.await_full()
            time.sleep(0.1)
        except (RuntimeError, OSError) as error:
            records.report_failure(system.name, RANKS, str(error))
            return
        finally:
            if job:
                job.end()
        _take(outcome, job)
        waits = " ".join(f"{wait:.2f}" for wait in outcome.waits[-len(kills) :]) if kills else "-"
        print(f"{system.name}: {1e3 * outcome.steps[-1]:.3g} ms a step; {waits} s", flush=True)
        if wrong := _wrong(job.steps()):
            records.report_failure(system.name, RANKS, wrong)


def _take(outcome: Outcome, job: Job) -> None:
    """Adds what a job's logs say."""
    steps = job.steps()
    outcome.steps.append(_step_time(steps, *job.hurried))
    outcome.changes += len({step.epoch for step in steps}) - 1
    outcome.own_ends += getattr(job, "own_ends", 0)
    victims = {kill.victim for kill in job.kills}
    outcome.wasted += sum(step.rank < 0 for step in steps)
    for pid in {step.pid for step in steps} - victims:
        own = [step.begun for step in steps if step.pid == pid]
        outcome.wasted += sum(b - a - 1 for a, b in itertools.pairwise(own))
    for kill, following in itertools.zip_longest(job.kills, job.kills[1:]):
        _take_kill(outcome, steps, kill, following.epoch if following else 1 << 62)


def _take_kill(outcome: Outcome, steps: list[Step], kill: Kill, last: int) -> None:
    """Adds what followed a kill; `last` is the epoch that the next kill ended."""
    after = [step for step in steps if kill.epoch < step.epoch <= last and step.time > kill.time]
    whole = [step for step in after if step.size == RANKS and step.rank >= 0]
    outcome.waits.append(after[0].time - kill.time)
    outcome.full.append(whole[0].time - kill.time)
    done = max(step.batch for step in steps if step.epoch <= kill.epoch and step.pid != kill.victim)
    outcome.redone.append(max(0, done + 1 - min(step.batch for step in after)))
    outcome.kept += len(kill.survivors & {step.pid for step in whole})


def _step_time(steps: list[Step], began: float, ended: float) -> float:
    """The mean time of a step between two moments."""
    by_rank: dict[int, list[Step]] = {}
    for step in steps:
        if began < step.time < ended:
            by_rank.setdefault(step.pid, []).append(step)
    return statistics.mean(
        b.time - a.time for own in by_rank.values() for a, b in itertools.pairwise(own)
    )


def _wrong(steps: list[Step]) -> str:
    """Compares the losses with those of one process that does each step once; what is wrong."""
    from benchmarks.elastic_peers.task import Task

    last = max(step.batch for step in steps)
    with tempfile.TemporaryDirectory() as folder:
        alone = Task(Path(folder))
        losses = []
        for batch in range(last):
            alone.step(alone.model, alone.optimizer, batch)
            losses.append(alone.loss)
    for step in steps:
        expected = losses[step.batch - 1]
        if step.rank >= 0 and abs(step.loss - expected) > _CLOSE * max(1e-3, expected):
            return f"step {step.batch} has the loss {step.loss:g} where {expected:g} is right"
    return ""


def _report(records: Records, system: System, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[system.name]
    kills = len(outcome.waits)
    plain = statistics.median(outcomes[system.plain].steps)
    step = statistics.median(outcome.steps)
    figures: list[tuple[str, float, str]] = []
    for what, values in (("next step", outcome.waits), ("all ranks again", outcome.full)):
        ordered = sorted(values)
        figures += [
            (f"kill to {what}, median", statistics.median(ordered), "s"),
            (f"kill to {what}, p99", ordered[int(0.99 * (kills - 1))], "s"),
            (f"kill to {what}, worst", ordered[-1], "s"),
        ]
    figures += [
        ("steps done again per kill, mean", statistics.mean(outcome.redone), "steps"),
        ("steps done again per kill, worst", max(outcome.redone), "steps"),
        ("batches begun in vain per kill, by all that lived", outcome.wasted / kills, "batches"),
        ("processes that went on, of 3", outcome.kept / kills, "processes"),
        ("changes of the members per kill", outcome.changes / kills, "changes"),
        ("processes that ended by themselves", outcome.own_ends, "processes"),
        ("a step without kills and pauses", 1e3 * step, "ms"),
        ("steps a second without kills, against the plain job", plain / step, "x"),
    ]
    origin: dict[str, Any] = {
        "system": system.name, "version": system.version, "flags": system.flags, "ranks": RANKS,
        "kills": kills, "load": round(statistics.median(outcome.loads), 2),
    }  # fmt: skip
    for what, value, unit in figures:
        _say(records, f"{system.name}, {kills} kills: {what}", value, unit, **origin)


def _say(records: Records, what: str, value: float, unit: str, **more: Any) -> None:
    records.write({"figure": what, "value": round(value, 4), "unit": unit, **more})
    print(f"{what}: {value:.4g} {unit}", flush=True)
