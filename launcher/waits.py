"""Which ranks wait for which, by the calls in flight of a running job or of records it has left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from horoacc.launcher.flight_records import Record

__all__ = ["Late", "late", "names"]


@dataclass(frozen=True)
class Late:
    """A call that some ranks wait for and others have not made."""

    tensor: str
    process_set: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    seconds: float
    more: int = 0
    """So many other calls wait for the same ranks."""

    def sentence(self, ended: float) -> str:
        """Says it, without a full stop.

        Args:
            ended: The time of day, in seconds since 1970, until which it waits.
        """
        clock = time.strftime("%H:%M:%S", time.localtime(ended - self.seconds))
        where = f" in process set {self.process_set}" if self.process_set else ""
        more = f" and {self.more} more" if self.more else ""
        verb = "waits" if len(self.waiting) == 1 else "wait"
        return (
            f"{names(self.waiting)} {verb} for {names(self.missing, of_sentence=False)} in "
            f"'{self.tensor}'{more}{where} since {clock}, for {self.seconds:.1f} s"
        )


def late(records: Mapping[int, Record], ended: float | None, least: float = 0.0) -> list[Late]:
    """The calls that keep ranks waiting for others, the oldest first.

    Args:
        records: By rank.
        ended: When the last of them was made, by the clocks of their hosts; None: all were made at
            the same time, so that clocks do not matter.
        least: Seconds; shorter waits are left out.
    """
    made: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
    members: dict[tuple[int, str], tuple[int, ...]] = {}
    agreed = set()
    for rank, record in records.items():
        for call in record.calls:
            key = call.process_set, call.tensor
            age = call.age if ended is None else max(ended - (record.time - call.age), 0.0)
            made[key][rank] = age
            members[key] = call.ranks
            if call.collective:
                agreed.add(key)
            for other in call.ready:  # of those that do not answer, or have left no record
                made[key].setdefault(other, age)
    found: dict[tuple[object, ...], Late] = {}
    oldest_first = sorted(made.items(), key=lambda item: -max(item[1].values()))
    for (process_set, tensor), ages in oldest_first:
        # What all have submitted is delayed by a rank that is gone.
        there = records if (process_set, tensor) in agreed else ages
        missing = tuple(rank for rank in members[process_set, tensor] if rank not in there)
        seconds = max(ages.values())
        if missing and seconds >= least:
            waiting = tuple(sorted(set(ages) - set(missing)))
            alike = process_set, waiting, missing
            if alike in found:
                found[alike] = replace(found[alike], more=found[alike].more + 1)
            else:
                found[alike] = Late(tensor, process_set, waiting, missing, seconds)
    return list(found.values())


def names(ranks: Sequence[int], of_sentence: bool = True) -> str:
    """Names some ranks, as at the beginning of a sentence or in it."""
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word.capitalize() if of_sentence else word} {', '.join(map(str, ranks))}"
