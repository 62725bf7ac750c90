"""Training steps on several ranks against the same script alone: on one rank, and on the same ranks
without communication.

Each rank has the network twice: the copy "together" is trained with the others, "alone" by itself.
A job of one rank runs the script too, where "together" is the script as it is. Short blocks of all
take turns, so that what slows the machine slows everybody.

| figure | is |
|---|---|
| efficiency | the step alone over the step together, on the same ranks |
| scaling | the step of one rank over the step together: what a rank keeps of its speed |
| communication share | the part of the step together that the step alone does not have |
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.group import GroupFailed, groups
from benchmarks.machine import cores
from benchmarks.records import Records

RANKS = 2
_LIMIT = 90
_ROUNDS, _BLOCK_SECONDS = 12, 0.3
_TURNS = (("one", "together"), ("ranks", "alone"), ("ranks", "together"))

Function = Callable[..., Any]


def compare(
    records: Records, what: str, build: Function, train: Function, same: Function, quick: bool,
    **extra: str,
) -> None:  # fmt: skip
    """Measures and compares with the target.

    Args:
        records: Where the figures go.
        what: What they are called.
        build: Makes both copies on a rank.
        train: Trains a copy for so many steps; gives the seconds of a step.
        same: Says whether all ranks have the same weights.
        quick: Whether a look is enough.
        extra: More variables for the ranks.
    """
    report_failure = records.reporter_of_failures(RANKS)
    with (
        groups(["horoacc"], 1, report_failure, False, **extra) as one,
        groups(["horoacc"], RANKS, report_failure, False, **extra) as several,
    ):
        if not one or not several:
            return
        jobs = {"one": one["horoacc"], "ranks": several["horoacc"]}
        try:
            for job in jobs.values():
                job.run(build)
            _measure(records, what, jobs, train, same, quick)
        except GroupFailed as error:
            report_failure(f"horoacc, {what}", str(error))


def _measure(
    records: Records, what: str, jobs: dict[str, Any], train: Function, same: Function, quick: bool
) -> None:
    first = max(jobs["ranks"].run(train, "alone", 4))
    steps = max(4, int(_BLOCK_SECONDS / first))
    seconds: dict[tuple[str, str], list[float]] = {turn: [] for turn in _TURNS}
    for turn in range(3 if quick else _ROUNDS):
        for job, copy in _TURNS if turn % 2 else reversed(_TURNS):
            seconds[job, copy].append(statistics.mean(jobs[job].run(train, copy, steps)))
    if not all(jobs["ranks"].run(same)):
        records.report_failure(f"horoacc, {what}", RANKS, "the ranks' weights differ")
    single, alone, together = (seconds[turn] for turn in _TURNS)
    efficiency = _median_share(alone, together)
    records.figure(
        f"{what}: efficiency", efficiency, "%", jobs["ranks"],
        network=what, scaling=_median_share(single, together),
        communication_share=round(100 - efficiency, 1),
        step_us={
            name: round(1e6 * statistics.median(found), 1)
            for name, found in (("one", single), ("alone", alone), ("together", together))
        },
    )  # fmt: skip
    records.target(f"{what}, {RANKS} ranks on {cores()} cores", efficiency, _LIMIT, "%", False)


def _median_share(of: list[float], whole: list[float]) -> float:
    """The median of the parts of pairs, in percent."""
    pairs = zip(of, whole, strict=True)
    return round(statistics.median(100 * part / total for part, total in pairs), 1)
