"""A job's calls as `horoaccrun replay` makes them again: names, sizes, order, and gaps."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from horoacc.launcher.flight_records import read_records
from horoacc.launcher.look.spans import Calls, Span, calls_of

__all__ = ["FILE", "KINDS", "Action", "Call", "Recording", "RecordingError", "load", "recorded"]

FILE = "calls.json"
"""The name of a recording in a folder of `horoaccrun report`."""
KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
"""What can be made again."""
_FORMAT = 1
_MOST_BYTES = 1 << 40
_LEAST_WAIT = 1e-6  # seconds
_MOST_STEPS = 100


class RecordingError(ValueError):
    """There is nothing that could be replayed."""


class Call(NamedTuple):
    """One call, which all ranks made."""

    name: str
    kind: str
    type: str
    bytes: tuple[int, ...]
    """By recorded rank."""
    bucket: int
    """Calls with the same number were reduced together."""


class Action(NamedTuple):
    """What a rank did after some computation."""

    gap: float
    """Seconds since the action before, in which it was blocked in no call."""
    waits: bool
    """It waited for the call; else it submitted it."""
    call: int


@dataclass(frozen=True)
class Recording:
    """Some whole steps of a job."""

    hosts: tuple[str, ...]
    """By recorded rank."""
    starts: tuple[int, ...]
    """With which calls steps begin; the first begins with call 0."""
    seconds: float
    """Of a step: the median."""
    calls: tuple[Call, ...]
    ranks: tuple[tuple[Action, ...], ...]
    """What each recorded rank did."""

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.starts)

    def of(self, rank: int) -> int:
        """The recorded rank whose part a rank of a replay plays."""
        return rank % len(self.ranks)

    def text(self) -> str:
        """As JSON."""
        return json.dumps({
            "format": _FORMAT, "hosts": self.hosts, "starts": self.starts, "seconds": self.seconds,
            "calls": self.calls,
            "ranks": [
                [[round(one.gap, 9), int(one.waits), one.call] for one in rank]
                for rank in self.ranks
            ],
        })  # fmt: skip


def load(path: Path) -> Recording:
    """Reads a recording: the file, a folder of `horoaccrun report`, or one of flight records.

    Raises:
        RecordingError: It is none; the text says why.
    """
    if path.is_dir() and not (path / FILE).exists():
        records, damaged = read_records(path)
        if not records or damaged:
            raise RecordingError(
                "; ".join(f"{path / name} is no record: {why}" for name, why in damaged.items())
                or f"there are neither {FILE} nor records (rank.N.json) in {path}"
            )
        size = max(record.size for record in records.values())
        if missing := [rank for rank in range(size) if rank not in records]:
            raise RecordingError(f"the record of rank {missing[0]} is missing in {path}")
        hosts = [record.host for record in records.values()]
        return recorded(calls_of(records, math.inf, 1 << 62), hosts)
    file = path / FILE if path.is_dir() else path
    try:
        return _parse(json.loads(file.read_text()))
    except OSError as error:
        raise RecordingError(f"{file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordingError(f"{file} is no recording: {error!r}") from None


def _parse(said: Any) -> Recording:
    if said["format"] != _FORMAT:
        raise ValueError("it is of another version of HoroACC")
    hosts = tuple(str(host) for host in said["hosts"])
    calls = tuple(
        Call(str(name), str(kind), str(type_), tuple(map(int, bytes_)), int(bucket))
        for name, kind, type_, bytes_, bucket in said["calls"]
    )
    ranks = tuple(
        tuple(Action(float(gap), bool(waits), int(call)) for gap, waits, call in rank)
        for rank in said["ranks"]
    )
    if not hosts or len(ranks) != len(hosts) or not calls:
        raise ValueError("it has no calls")
    for call in calls:
        if call.kind not in KINDS or len(call.bytes) != len(hosts):
            raise ValueError(f"{call.name} is no call")
        if not all(0 <= size <= _MOST_BYTES for size in call.bytes):
            raise ValueError(f"{call.name} has a size that cannot be")
    for rank in ranks:
        submitted = [one.call for one in rank if not one.waits]
        if sorted(submitted) != list(range(len(calls))):
            raise ValueError("its ranks do not make the same calls")
        if not all(math.isfinite(one.gap) and 0 <= one.gap < 1e9 for one in rank):
            raise ValueError("a gap is no time")
        if not all(0 <= one.call < len(calls) for one in rank):
            raise ValueError("a rank waits for an unknown call")
    starts, seconds = tuple(map(int, said["starts"])), float(said["seconds"])
    if starts[:1] != (0,) or list(starts) != sorted(set(starts)) or starts[-1] >= len(calls):
        raise ValueError("it has no steps")
    if not math.isfinite(seconds):
        raise ValueError("its step takes no time")
    return Recording(hosts, starts, seconds, calls, ranks)


def recorded(of: Calls, hosts: Sequence[str]) -> Recording:
    """Cuts whole steps, at most the latest hundred, out of what ranks did.

    A step begins with the call whose name comes most often, of the set of all ranks with the most
    calls: the global one, or a group of torch.distributed.

    Args:
        of: What all ranks of the job did.
        hosts: By rank.

    Raises:
        RecordingError: There is no whole step that all ranks have in memory.
    """
    known = {
        rank: [span for span in own if span.collective and span.done and span.kind in KINDS]
        for rank, own in of.spans.items()
    }
    by_set = [Counter(span.process_set for span in own) for own in known.values()]
    sets = set[int]().union(*by_set)
    least = {number: min(counted[number] for counted in by_set) for number in sorted(sets)}
    busiest = max(least, key=lambda number: least[number], default=0)
    if not least.get(busiest):
        raise RecordingError("a rank has made no calls lately that could be replayed")
    spans = {
        rank: {(span.collective, span.tensor): span for span in own if span.process_set == busiest}
        for rank, own in known.items()
    }
    first = max(min(collective for collective, _ in own) for own in spans.values())
    last = min(max(collective for collective, _ in own) for own in spans.values())
    # The bucket with which a rank's memory begins may not be whole.
    common = sorted(
        (key for key in spans[0] if first < key[0] <= last
         and all(key in own for own in spans.values())),
        key=lambda key: (key[0], spans[0][key].queued),
    )  # fmt: skip
    names = [_name(spans[0][key]) for key in common]
    times = Counter(names)
    begin = max(times, key=lambda name: times[name], default="")  # the first of several
    if times[begin] < 2:
        raise RecordingError(
            "no call comes twice in what the ranks remember: there is no whole step; more calls "
            "are kept with HOROACC_FLIGHT_EVENTS"
        )
    starts = [at for at, name in enumerate(names) if name == begin][-_MOST_STEPS - 1 :]
    numbers = {key: at for at, key in enumerate(common[starts[0] : starts[-1]])}
    calls = []
    for collective, tensor in numbers:
        span = spans[0][collective, tensor]
        name = _name(span).removeprefix(f"{span.kind}.")
        sizes = tuple(own[collective, tensor].bytes for own in spans.values())
        calls.append(Call(name, span.kind, span.type, sizes, collective))
    begun = [spans[0][common[start]].queued for start in starts]
    seconds = statistics.median(after - at for at, after in itertools.pairwise(begun))
    first_calls = tuple(start - starts[0] for start in starts[:-1])
    ranks = tuple(_actions(of.spans[rank], numbers) for rank in spans)
    return Recording(tuple(hosts), first_calls, seconds, tuple(calls), ranks)


def _name(span: Span) -> str:
    """Of a call without one, which comes again in each step, its place in the step."""
    return f"{span.kind}.{span.place}" if span.place else span.tensor


def _actions(spans: Sequence[Span], numbers: Mapping[tuple[int, str], int]) -> tuple[Action, ...]:
    """What a rank did about some calls; what it did about others counts as no computation.

    A call that was done before anybody asked for it is asked for with the next one that was not, or
    before the next one of its name, when the script had asked for what was done by then.
    """
    moments: list[tuple[float, float, Span, bool]] = []
    for span in spans:
        moments.append((span.queued, span.queued, span, False))
        if span.done and span.waited > _LEAST_WAIT:
            moments.append((max(span.done - span.waited, span.queued), span.done, span, True))
    moments.sort(key=lambda moment: moment[:2])
    found: list[Action] = []
    over, gap = moments[0][0], 0.0
    unasked: list[Span] = []

    def ask(until: float) -> None:
        done = [number_of(span) for span in unasked if span.done <= until]
        found.extend(Action(0.0, True, number) for number in done if number is not None)
        unasked[:] = [span for span in unasked if span.done > until]

    def number_of(span: Span) -> int | None:
        return numbers.get((span.collective, span.tensor))

    for begun, ended, span, waits in moments:
        gap += max(begun - over, 0.0)
        over = max(over, ended)
        number = number_of(span)
        if not waits and any(_name(other) == _name(span) for other in unasked):
            ask(begun)
        if number is not None:
            found.append(Action(gap, waits, number))
        if not waits and span.waited <= _LEAST_WAIT:
            unasked.append(span)
        if number is not None or not found:
            gap = 0.0  # what is before the first is of steps before
        if waits:
            ask(ended)
    return tuple(found)
