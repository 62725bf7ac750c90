"""The latest calls of all ranks as one trace for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from horoacc.launcher.flight_records import Record
from horoacc.launcher.look.shares import Work
from horoacc.launcher.look.spans import Blocked, Span

__all__ = ["trace"]

_BLOCKED_LANE = 0


def trace(done: Work, records: dict[int, Record]) -> dict[str, Any]:
    """Makes a trace of the Chrome format: a process for each rank, on one clock.

    Its first lane shows when the rank was blocked, and what for; the others its calls, which
    overlap.
    """
    spans = [span for of in done.calls.spans.values() for span in of]
    begin = min((span.queued for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, record in records.items():
        title = f"rank {rank} on {record.host}"
        events += _named("process_name", rank, 0, title)
        events += _named("thread_name", rank, _BLOCKED_LANE, "blocked")
    for one in done.calls.blocked(begin):
        events += _blocked(one, begin)
    for rank, of in done.calls.spans.items():
        free: list[float] = []  # by lane, from when on
        for span in of:
            end = span.done or done.calls.now
            lane = next((at for at, until in enumerate(free) if until <= span.queued), len(free))
            if lane == len(free):
                free.append(0.0)
                events += _named("thread_name", rank, lane + 1, f"calls {lane + 1}")
            free[lane] = end
            events += _call(span, lane + 1, begin, end)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(kind: str, rank: int, lane: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": kind, "pid": rank, "tid": lane, "args": {"name": name}}


def _slice(
    rank: int, lane: int, name: str, begin: float, since: float, until: float, **args: Any
) -> Iterator[dict[str, Any]]:
    # Whole nanoseconds, which viewers read exactly: what touches does not overlap.
    since_ns, until_ns = (round((at - begin) * 1e9) for at in (since, until))
    if until_ns > since_ns:
        yield {
            "ph": "X", "name": name, "pid": rank, "tid": lane, "ts": since_ns / 1e3,
            "dur": (until_ns - since_ns) / 1e3, "args": args,
        }  # fmt: skip


def _blocked(one: Blocked, begin: float) -> Iterator[dict[str, Any]]:
    for name, since, until in (
        (f"waits for rank {one.last}", one.begin, one.submitted),
        ("negotiates", one.submitted, one.agreed),
        ("reduces", one.agreed, one.end),
    ):
        yield from _slice(one.rank, _BLOCKED_LANE, name, begin, since, until)


def _call(span: Span, lane: int, begin: float, end: float) -> Iterator[dict[str, Any]]:
    args = {"process set": span.process_set, "collective": span.collective}
    yield from _slice(span.rank, lane, span.tensor, begin, span.queued, end, **args)
    agreed = min(span.agreed or end, end)
    yield from _slice(span.rank, lane, "NEGOTIATE", begin, span.queued, agreed)
    yield from _slice(span.rank, lane, "REDUCE", begin, agreed, end)
