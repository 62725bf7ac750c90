"""How ranks spend their time, and which of them keeps the others waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from horoacc.launcher import waits
from horoacc.launcher.look.asking import View
from horoacc.launcher.look.spans import Blocked, Calls, calls_of
from horoacc.launcher.waits import Late

__all__ = ["BYTES_NOTICED", "PATHS", "Path", "Shares", "Work", "late", "path", "work"]

_STEPS = 3
PATHS = {
    "arena_bytes": "arena", "staged_bytes": "copied", "window_bytes": "window",
    "link_bytes": "links", "gpu_bytes": "cpu reduce", "gpu_leader_bytes": "gpu leader",
    "gpu_stream_bytes": "gpu stream", "gpu_kernel_bytes": "gpu kernel", "gpu_nccl_bytes": "nccl",
    "gpu_composed_bytes": "gpu composed", "gpu_moved_bytes": "gpu moves",
}  # fmt: skip
"""By the counter of a rank's bytes, the way that they took."""
BYTES_NOTICED = 0.2  # of the time: less for reductions is not worth a word
# A call that a rank has not made yet keeps the others waiting once it is so late.
LATE_SECONDS = 0.3


@dataclass
class Shares:
    """Parts of a rank's time, together 1."""

    compute: float = 1.0
    negotiate: float = 0.0
    reduce: float = 0.0
    waiting: dict[int, float] = field(default_factory=dict)
    """By the rank that it waits for."""


@dataclass(frozen=True)
class Work:
    """What a job did lately."""

    calls: Calls
    step: float
    """Seconds; 0: unknown."""
    seconds: float
    """Over which the rest was seen."""
    shares: Mapping[int, Shares]
    """By rank."""
    keeps: Mapping[int, float]
    """By rank: for what part of the time the average other rank waited for it."""

    @property
    def idle(self) -> float:
        """For how long no rank has made a call."""
        return self.calls.now - max(
            (span.queued for spans in self.calls.spans.values() for span in spans[-1:]),
            default=self.calls.now,
        )

    @property
    def stands(self) -> bool:
        """Whether the next step is long overdue."""
        return self.idle > max(3 * self.step, 2 * LATE_SECONDS)

    @property
    def slowest(self) -> int | None:
        """The rank for which the others wait most, if they do."""
        rank = max(self.keeps, key=lambda one: self.keeps[one], default=None)
        return rank if rank is not None and self.keeps[rank] > 0.05 else None


@dataclass(frozen=True)
class Path:
    """What the job as a whole waited for: parts of the time, together 1."""

    straggle: Mapping[int, float]
    """Some ranks waited for this one."""
    negotiate: float
    reduce: float
    """All ranks were blocked."""
    compute: float
    """None waited for another."""
    hidden: float
    """Calls were in flight while some rank computed, none waiting: part of `compute`."""


def work(view: View, seconds: float = 2.0) -> Work:
    """Puts together what the ranks did in the last seconds, or three steps if that is longer."""
    calls = calls_of(view.records, view.scope.seconds, view.scope.events)
    step = calls.step()
    window = max(seconds, _STEPS * step)
    begin = max([calls.now - window, *calls.since.values()], default=calls.now)
    seconds = calls.now - begin
    step = calls.step(begin) or step
    shares: dict[int, Shares] = {rank: Shares() for rank in view.records}
    keeps: dict[int, float] = defaultdict(float)
    if seconds <= 0:
        return Work(calls, step, 0, shares, keeps)
    for one in calls.blocked(begin) + _in_flight(view, calls, begin):
        own = shares[one.rank]
        waits = (one.submitted - one.begin) / seconds
        if waits > 0:
            own.waiting[one.last] = own.waiting.get(one.last, 0) + waits
            keeps[one.last] += waits / max(view.size - 1, 1)
        own.negotiate += (one.agreed - one.submitted) / seconds
        own.reduce += (one.end - one.agreed) / seconds
    for own in shares.values():
        rest = own.negotiate + own.reduce + sum(own.waiting.values())
        own.compute = max(1 - rest, 0.0)
    return Work(calls, step, seconds, shares, keeps)


def _in_flight(view: View, calls: Calls, begin: float) -> list[Blocked]:
    """The waits that go on."""
    found = []
    for rank, record in view.records.items():
        blocking = [call for call in record.calls if call.blocks]
        if not blocking:
            continue
        call = max(blocking, key=lambda one: one.age)
        before = max((span.done for span in calls.spans[rank]), default=begin)
        since = max(calls.now - call.age, before, begin)
        agreed = since if call.collective else calls.now
        cut = calls.now if call.missing else since
        last = call.missing[0] if call.missing else rank
        found.append(Blocked(rank, since, cut, last, max(agreed, cut), calls.now))
    return found


def late(view: View) -> list[Late]:
    """The calls that keep ranks waiting for others, the oldest first."""
    return waits.late(view.records, None, LATE_SECONDS)


def path(done: Work) -> Path:
    """Goes through the time once, and says what it went into."""
    begin = done.calls.now - done.seconds
    marks: list[tuple[float, int, str, int]] = []  # time, +1 or -1, of which kind, rank
    ranks = set(done.shares)
    for one in done.calls.blocked(begin):
        for kind, since, until in (
            (f"{one.last}", one.begin, one.submitted),
            ("negotiate", one.submitted, one.agreed),
            ("reduce", one.agreed, one.end),
        ):
            if until > since:
                marks += [(since, 1, kind, one.rank), (until, -1, kind, one.rank)]
    for spans in done.calls.spans.values():
        for span in spans:
            if span.done > begin:
                marks += [(max(span.queued, begin), 1, "flight", -1), (span.done, -1, "flight", -1)]
    straggle: dict[int, float] = defaultdict(float)
    parts: dict[str, float] = defaultdict(float)
    active: dict[str, int] = defaultdict(int)
    at = begin
    for time, change, kind, _rank in sorted(marks, key=lambda mark: (mark[0], mark[1])):
        passed, at = time - at, time
        waited_for = [name for name, count in active.items() if count and name.isdigit()]
        blocked = sum(count for name, count in active.items() if name != "flight")
        if waited_for:
            for name in waited_for:
                straggle[int(name)] += passed / len(waited_for)
        elif blocked >= len(ranks):
            parts["reduce" if active["reduce"] else "negotiate"] += passed
        else:
            parts["compute"] += passed
            parts["hidden"] += passed if active["flight"] else 0
        active[kind] += change
    parts["compute"] += max(done.calls.now - at, 0)
    whole = done.seconds or 1.0
    return Path(
        {rank: seconds / whole for rank, seconds in straggle.items()},
        parts["negotiate"] / whole, parts["reduce"] / whole,
        parts["compute"] / whole, parts["hidden"] / whole,
    )  # fmt: skip
