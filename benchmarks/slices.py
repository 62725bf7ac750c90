"""Short slices of time, one system after the other, over buffers that rotate.

A contender's time is measured in slices of some hundredths of a second that take turns with all the
others', so that a machine that is slow for a while is slow for all. The figure is the median over
the slices, each the mean of its calls, back to back, averaged over the ranks as nccl-tests does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np

from benchmarks.adapters import Adapter, Array
from benchmarks.group import Group, GroupFailed
from benchmarks.machine import cores, last_cache_bytes
from benchmarks.rank import Rank

_MOST_CALLS = 20_000
_PATTERN = 1 << 18


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    """Of one slice."""
    warm: float
    """Seconds of the same calls just before each slice. The scheduler forgets the load of the one
    before in about 50 ms, and until then it may put two ranks on one core."""
    most_seconds: float
    """Of all slices of a contender, about: who is that slow gets fewer of them."""

    @classmethod
    def of(cls, quick: bool, ranks: int) -> Effort:
        """The effort of a run, or of a look whether everything works."""
        if quick:
            return cls(3, 0.005, 0.005, 0.5)
        return cls(7, 0.03, 0.02 if ranks <= cores() else 0.1, 1.5)


@dataclass
class Sample:
    """The slices of one contender."""

    seconds: list[float] = field(default_factory=list)
    """Of one call, by slice."""
    iterations: int = 0
    """Calls of one slice."""
    wrong: int = 0
    """Elements that were not what they should be, in the checks before and after."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Contender:
    """What takes part: a group and how it is called."""

    name: str
    group: Group
    memory: str = "private"
    how: str = "in place"


# --- on the ranks ------------------------------------------------------------------------------


class Work(Protocol):
    """What a rank does in a slice."""

    def run(self, warm: int, calls: int) -> float:
        """Does it `warm` times, and `calls` times by the clock; gives the seconds of one call."""

    def wrong(self) -> int:
        """Does it once with known values; gives the number of wrong elements."""


def slots(size: int, ranks: int) -> int:
    """How many buffers a rank rotates through, so that all ranks' exceed four times the cache."""
    return max(1, -(-4 * last_cache_bytes() // (size * ranks)))


class Rotation:
    """Allreduces over the buffers of one rank in turn."""

    def __init__(self, adapter: Adapter, size: int, memory: str, how: str) -> None:
        self._adapter, self._how = adapter, how
        self._count = size // 4
        self._slots = slots(size, adapter.size)
        self._next = 0
        self._block = adapter.allocate(self._count * self._slots, memory)
        # Zeros stay what they are, however often they are summed up; and now the pages exist.
        adapter.array(self._block)[:] = 0

    def _buffer(self) -> Any:
        begin = self._next * self._count
        self._next = (self._next + 1) % self._slots
        return self._block[begin : begin + self._count]

    def run(self, warm: int, calls: int) -> float:
        turn = [self._adapter.call(self._buffer(), self._how) for _ in range(warm + calls)]
        for call in turn[:warm]:
            call()
        self._adapter.barrier()
        begin = time.perf_counter()
        for call in turn[warm:]:
            call()
        return (time.perf_counter() - begin) / calls

    def wrong(self) -> int:
        buffer = self._buffer()
        values = self._adapter.array(buffer)
        fill(values, self._adapter.rank + 1)
        result = self._adapter.call(buffer, self._how)()
        found = self._adapter.array(result) if hasattr(result, "shape") else values
        count = differing(found, self._adapter.size * (self._adapter.size + 1) // 2)
        values[:] = 0
        return count


@cache
def _pattern() -> Array:
    return (1 + np.arange(_PATTERN) % 31).astype(np.float32)


def fill(values: Array, factor: int) -> None:
    """Writes a pattern of small integers, whose sums are exact in float32, times a factor."""
    for begin in range(0, len(values), _PATTERN):
        part = values[begin : begin + _PATTERN]
        np.multiply(_pattern()[: len(part)], factor, out=part)


def differing(values: Array, factor: int) -> int:
    """Counts the elements that are not what `fill` writes with this factor."""
    count = 0
    expected = _pattern() * factor
    for begin in range(0, len(values), _PATTERN):
        part = values[begin : begin + _PATTERN]
        count += int(np.count_nonzero(part != expected[: len(part)]))
    return count


def prepare(rank: Rank, key: str, work: Callable[..., Work], arguments: tuple[Any, ...]) -> int:
    """Makes what the slices of a contender work on, and checks it."""
    rank.kept[key] = made = work(rank.adapter, *arguments)
    return made.wrong()


def take(rank: Rank, key: str, warm: int, calls: int) -> float:
    """Does one slice."""
    made: Work = rank.kept[key]
    return made.run(warm, calls)


def finish(rank: Rank, key: str, check: bool) -> int:
    """Checks once more and lets the buffers go."""
    made: Work = rank.kept.pop(key)
    return made.wrong() if check else 0


# --- in the driver -----------------------------------------------------------------------------


class Slices:
    """One contender's slices of one measurement."""

    def __init__(self, contender: Contender, work: Callable[..., Work], *arguments: Any) -> None:
        self.contender = contender
        self.sample = Sample()
        self._work, self._arguments = work, arguments
        self._spent = 0.0
        self._warm = 0
        self._checks = True
        # Two contenders may share a group.
        self._key = f"{contender.name} {contender.memory} {contender.how}"

    def prepare(self, effort: Effort) -> None:
        """Sets it up, and finds how many calls make a slice."""
        group = self.contender.group
        self.sample.wrong += sum(group.run(prepare, self._key, self._work, self._arguments))
        calls = 1
        each = self._take(calls)
        # The first calls after a pause may take a hundred times as long as the next.
        while calls == 1 or (calls * each < effort.seconds and calls < _MOST_CALLS):
            self._warm = calls
            calls = min(_MOST_CALLS, 4 * calls)
            each = self._take(calls)
        self.sample.iterations = int(min(_MOST_CALLS, max(1, effort.seconds / each)))
        self._warm = int(min(_MOST_CALLS, max(1, effort.warm / each)))
        if each > effort.most_seconds:
            self.sample.seconds.append(each)
            self._spent, self._checks = each, False

    def take(self, effort: Effort) -> None:
        """Takes one slice, if there is time for it."""
        if self._spent < effort.most_seconds:
            each = self._take(self.sample.iterations)
            self.sample.seconds.append(each)
            self._spent += each * (self._warm + self.sample.iterations)

    def _take(self, calls: int) -> float:
        times: list[float] = self.contender.group.run(take, self._key, self._warm, calls)
        return statistics.mean(times)

    def finish(self) -> None:
        """Ends it."""
        self.sample.wrong += sum(self.contender.group.run(finish, self._key, self._checks))


def compete(
    entries: Sequence[Slices], effort: Effort, report_failure: Callable[[str, str], None]
) -> dict[str, Sample]:
    """Measures the contenders in turns.

    Args:
        entries: Who takes part; names are distinct.
        effort: How long.
        report_failure: Is told the name of a contender that fails and why; the others go on.

    Returns:
        The slices of those that did not fail, by the contender's name.
    """
    alive = list(entries)

    def each(action: Callable[[Slices], None], turn: int = 0) -> None:
        for entry in [*alive[turn:], *alive[:turn]]:
            try:
                action(entry)
            except GroupFailed as error:
                report_failure(entry.contender.name, str(error))
                alive.remove(entry)

    each(lambda entry: entry.prepare(effort))
    for turn in range(effort.rounds):
        # Nobody always runs after the same one.
        each(lambda entry: entry.take(effort), turn % max(1, len(alive)))
    each(Slices.finish)
    return {entry.contender.name: entry.sample for entry in alive}
