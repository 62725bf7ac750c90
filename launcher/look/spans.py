"""From the events of all ranks to their latest calls, on one clock."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from horoacc.launcher.flight_records import Event, Record

__all__ = ["Blocked", "Calls", "Span", "calls_of"]

_UNNAMED = ".noname."  # csrc/negotiate/request.cc
_OF_STEPS = ("allreduce", "broadcast")
_REPEATS = 3


@dataclass
class Span:
    """One call of a rank. Times are seconds of one clock for all ranks; 0: not yet."""

    rank: int
    tensor: str
    process_set: int
    queued: float
    collective: int = 0
    agreed: float = 0
    done: float = 0
    waited: float = 0
    """How long callers were blocked in it."""
    kind: str = ""
    """Its collective."""
    bytes: int = 0
    type: str = ""
    place: str = ""
    """Of a call without a name that comes again in each step: which of them it is."""

    def shift(self, seconds: float) -> None:
        """Moves it to another clock."""
        self.queued += seconds
        self.agreed += seconds if self.agreed else 0
        self.done += seconds if self.done else 0


@dataclass(frozen=True)
class Blocked:
    """A time in which a rank did nothing but wait, cut into what for."""

    rank: int
    begin: float
    submitted: float
    """Until then some rank had not submitted the call:"""
    last: int
    """this one."""
    agreed: float
    """Until then the ranks negotiated, and from then on they reduced."""
    end: float


@dataclass
class Calls:
    """What ranks did lately."""

    spans: dict[int, list[Span]]
    """By rank, in the order of submission."""
    now: float
    since: dict[int, float] = field(default_factory=dict)
    """By rank: from when on all is known."""

    def step(self, begin: float = 0.0) -> float:
        """How long a step takes, as calls come again and again; 0: they do not.

        Args:
            begin: Calls since then count.
        """
        intervals = []
        for spans in self.spans.values():
            times: dict[tuple[int, str], list[float]] = defaultdict(list)
            for span in spans:
                if span.queued >= begin:
                    times[span.process_set, span.place or span.tensor].append(span.queued)
            intervals += [
                (found[-1] - found[0]) / (len(found) - 1)
                for found in times.values()
                if len(found) > 1
            ]
        return statistics.median(intervals) if intervals else 0.0

    def blocked(self, begin: float) -> list[Blocked]:
        """When which rank was blocked since `begin`, and what for."""
        last: dict[tuple[int, int], tuple[float, int]] = {}
        waits = set()
        for rank, spans in self.spans.items():
            for span in spans:
                key = span.process_set, span.collective
                if span.collective:
                    last[key] = max(last.get(key, (0.0, 0)), (span.queued, rank))
                if span.waited:
                    waits.add(rank)
        found = []
        for rank, spans in self.spans.items():
            over = begin
            for span in sorted(spans, key=lambda one: one.done):
                if not span.done or span.done < begin:
                    continue
                # Callbacks wait for nothing: with no waits, the time of calls in flight counts.
                since = span.done - span.waited if rank in waits else span.queued
                since = max(since, over)
                if since >= span.done or (rank in waits and not span.waited):
                    continue
                over = span.done
                submitted, who = last.get((span.process_set, span.collective), (0.0, rank))
                cut = min(max(submitted, since), span.done) if who != rank else since
                agreed = min(max(span.agreed, cut), span.done)
                found.append(Blocked(rank, since, cut, who, agreed, span.done))
        return found


def calls_of(records: Mapping[int, Record], seconds: float, most: int) -> Calls:
    """Puts the events of all ranks together.

    Args:
        records: By rank.
        seconds: Of how long ago they have events,
        most: and how many.
    """
    spans: dict[int, list[Span]] = {}
    since = {}
    for rank, record in records.items():
        spans[rank] = _spans(rank, record.events, record.clock)
        # Earlier ones are not there, or not kept any more.
        lacks = len(record.events) >= most or len(spans[rank]) >= 0.9 * record.flight_events
        oldest = record.events[0].age if record.events else 0.0
        since[rank] = max(record.clock - (oldest if lacks else seconds), record.since)
    now = {rank: record.clock for rank, record in records.items()}
    # Hosts may have equal names, and each has a clock of its own.
    hosts: dict[tuple[int, ...] | str, list[int]] = defaultdict(list)
    for rank, record in records.items():
        hosts[record.host_ranks or record.host].append(rank)
    first, *others = hosts.values() if hosts else [[]]
    for ranks in others:
        offset = _offset([spans[r] for r in first], [spans[r] for r in ranks])
        if offset is None:  # nothing in common: the two looks were at about the same time
            offset = now[first[0]] - now[ranks[0]]
        for rank in ranks:
            for span in spans[rank]:
                span.shift(offset)
            now[rank] += offset
            since[rank] += offset
    return Calls(spans, max(now.values(), default=0.0), since)


def _spans(rank: int, events: Iterable[Event], clock: float) -> list[Span]:
    found: list[Span] = []
    open_: dict[tuple[int, str], Span] = {}
    for event in events:
        key, at = (event.process_set, event.tensor), clock - event.age
        if event.what == "queued":
            open_[key] = Span(
                rank, event.tensor, event.process_set, at,
                kind=event.kind, bytes=event.bytes, type=event.type,
            )  # fmt: skip
            found.append(open_[key])
            continue
        span = open_.get(key)
        if span is None:
            continue  # its submission is longer ago than the rank remembers
        if event.what == "agreed":
            span.agreed, span.collective = at, event.collective
        elif event.what in ("done", "failed"):
            span.done, span.waited = at, event.waited
            span.agreed = span.agreed or at
            span.collective = span.collective or event.collective
            del open_[key]
    _find_places(found)
    return found


def _find_places(spans: Iterable[Span]) -> None:
    """Tells which calls without names, as DistributedDataParallel's are, come again in each step.

    Not where ranks gather or scatter: as FSDP's, these come once for each layer, and layers that
    are alike would look like steps.
    """
    unnamed: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        if _UNNAMED in span.tensor:
            unnamed[span.process_set].append(span)
    for calls in unnamed.values():
        calls.reverse()
        period, length = _period([(call.kind, call.bytes, call.type) for call in calls])
        if all(call.kind in _OF_STEPS for call in calls[:period]):
            for number, call in enumerate(calls[:length]):
                call.place = str((-1 - number) % period)


def _period(sequence: Sequence[object]) -> tuple[int, int]:
    """Of the longest beginning that is the same thing three times or more: how long that is, and
    how long the beginning; or 0 and 0. By its borders (D. Knuth, J. Morris and V. Pratt, 1977).
    """
    borders: list[int] = []
    found = (0, 0)
    for at, one in enumerate(sequence):
        border = borders[-1] if borders else 0
        while border and sequence[border] != one:
            border = borders[border - 1]
        borders.append(border + 1 if at and sequence[border] == one else border)
        period = at + 1 - borders[-1]
        if at + 1 >= _REPEATS * period:
            found = (period, at + 1)
    return found


def _offset(here: Iterable[list[Span]], there: Iterable[list[Span]]) -> float | None:
    """What another host's clock lacks: ranks learn of an agreement at about the same time."""

    def agreed(all_spans: Iterable[list[Span]]) -> dict[tuple[int, int], float]:
        return {
            (span.process_set, span.collective): span.agreed
            for spans in all_spans
            for span in spans
            if span.collective
        }

    ours, theirs = agreed(here), agreed(there)
    differences = [ours[key] - at for key, at in theirs.items() if key in ours]
    return statistics.median(differences) if differences else None
