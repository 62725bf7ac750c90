"""`horoaccrun explain DIR`: which ranks waited for which when they wrote their records.

And the command line of `horoaccrun explain`, which explains running jobs, too (look/story.py).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from horoacc.launcher.elastic.history import FILE as HISTORY
from horoacc.launcher.elastic.history import story
from horoacc.launcher.flight_records import Record, read_records
from horoacc.launcher.tuning import sentences
from horoacc.launcher.waits import Late, late

__all__ = ["UNLOCKS", "RecordError", "explain", "main", "place_of", "unlocked"]


UNLOCKS = {
    "changed": (
        "the type, the shape or the place of a gradient changed",
        "make the same calls in each step, with tensors of the same types and shapes",
    ),
    "wait": (
        "it waited before all gradients of a step were there",
        "call `synchronize()` only after `backward()`",
    ),
    "join": ("it joined", "give all ranks the same number of steps"),
    "refused": (
        "a bucket was refused (a timeline, check_numerics, or a process set that was removed)",
        "end the timeline, or look at what `check_numerics` has found",
    ),
    "end": (
        "other hooks took the place of its gradients'",
        "let one optimizer have the parameters, and all of them from its beginning",
    ),
}
"""Why a rank itself has left a locked plan, and what helps against it, by the ends of the counters
`plan_unlocks_…`; not `tuned` ones, which autotune makes on purpose."""

_SHORT_PLAN = 16
"""Steps; a plan that lasts no longer saves less than the steps cost in which it is made."""


class RecordError(ValueError):
    """A folder holds no record that can be read."""


def main(arguments: Sequence[str]) -> int:
    """Runs the command line after `explain`; the exit code is 1 if there is nothing to explain."""
    from horoacc.launcher.look import story  # noqa: PLC0415 - it uses this module
    from horoacc.launcher.look.jobs import LookError  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog="horoaccrun explain",
        description="Says who waits for whom, and why: of a running job of this user, or from the "
        "records that its ranks left in HOROACC_FLIGHT_DIR.",
    )
    parser.add_argument(
        "job",
        nargs="?",
        help="the directory with the files rank.N.json; or a running job's name, or the number of "
        "a process of it; none: the only running job",
    )
    parser.add_argument(
        "--stacks", action="store_true", help="of a running job: where all ranks are"
    )
    given = parser.parse_args(arguments)
    folder = Path(given.job or "")
    try:
        is_folder = given.job and (folder.is_dir() or os.sep in given.job)
        print("\n".join(explain(folder) if is_folder else story.tell(given.job, given.stacks)))
    except (RecordError, LookError) as error:
        print(f"horoaccrun explain: {error}")
        return 1
    return 0


def explain(folder: Path) -> list[str]:
    """Puts the records of a folder together: lines, the most important first.

    Of an elastic job the changes of its ranks come before.

    Raises:
        RecordError: There are none that can be read.
    """
    records, damaged = read_records(folder)
    history = folder / HISTORY
    told = story(history) if history.is_file() else []
    if told and not records:
        return told
    if not records:
        raise RecordError(
            "; ".join(f"{folder / name} is no record: {why}" for name, why in damaged.items())
            or f"there are no records (rank.N.json) in {folder}"
        )
    return told + _told_by(records, damaged)


def _told_by(records: Mapping[int, Record], damaged: Mapping[str, str]) -> list[str]:
    size = max(record.size for record in records.values())
    ended = max(record.time for record in records.values())
    lines = [_sentence(wait, records, ended) for wait in late(records, ended)]
    if not lines:
        lines.append("No rank waited for another: every call in flight was made by all.")
    lines += [line for rank, record in records.items() if (line := unlocked(rank, record))]
    lines += [
        line for record in records.values() if record.tuning for line in sentences(record.tuning)
    ]
    lines += [
        f"Rank {rank} left no record: it was killed or stopped, or its host has another folder."
        for rank in range(size)
        if rank not in records and f"rank.{rank}.json" not in damaged
    ]
    lines += [f"{name} is damaged, and not heeded: {why}." for name, why in damaged.items()]
    lines += [_why(rank, record) for rank, record in records.items()]
    return lines


def _sentence(wait: Late, records: Mapping[int, Record], ended: float) -> str:
    text = wait.sentence(ended)
    for rank in wait.missing:
        if rank in records:
            text += f"; rank {rank} {_last(records[rank])}"
            if place := place_of(records[rank].stack):
                text += f" and is in {place}"
            if lacks := records[rank].plans.lacks.get(wait.tensor):
                text += f"; it lacks {lacks}"
    return text + "."


def unlocked(rank: int, record: Record) -> str:
    """Says what unlocks a rank's gradients again and again; "" if nothing does."""
    plans = record.plans
    own = {why: count for why, count in plans.unlocks.items() if count and why in UNLOCKS}
    ended = sum(count for why, count in plans.unlocks.items() if why != "tuned")
    if not own or ended < 2 or plans.rounds >= _SHORT_PLAN * ended:
        return ""
    whys = ", ".join(f"{count} times because {UNLOCKS[why][0]}" for why, count in own.items())
    return (
        f"Rank {rank} left a locked plan of gradients {whys}; only {plans.rounds} steps needed one "
        f"call a bucket ({plans.left})."
    ).replace(" 1 times ", " once ")


def _last(record: Record) -> str:
    """The last call that a rank completed."""
    for event in reversed(record.events):
        if event.what == "done":
            return f"has done nothing since it completed '{event.tensor}' {event.age:.0f} s ago"
    return "has completed nothing yet"


def place_of(stack: str) -> str:
    """Gives the innermost lines of the main thread, whose section is the last one."""
    frames: list[str] = []
    for line in stack.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            frames = []
        elif line == "...":  # more threads than faulthandler writes: the main one is left out
            return ""
        elif line.startswith("  File "):
            path, _, rest = line.removeprefix('  File "').partition('", line ')
            number, _, function = rest.partition(" in ")
            frames.append(f"{function} ({Path(path).name}:{number})")
    return " < ".join(frames[:4])


def _why(rank: int, record: Record) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(record.time))
    return (
        f"Rank {rank} on {record.host} (process {record.pid}) wrote its record at {clock}: "
        f"{record.reason}."
    )
