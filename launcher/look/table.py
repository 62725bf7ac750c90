"""What `horoaccrun top` shows: the job in some lines, and a row for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from horoacc.launcher.look.asking import View
from horoacc.launcher.look.shares import BYTES_NOTICED, PATHS, Shares, Work, late, path, work
from horoacc.launcher.tuning import Tuning, headline, latest
from horoacc.launcher.waits import Late, names

__all__ = ["COLUMNS", "LEFT_OUT_FIRST", "Line", "Picture", "picture", "plain"]

COLUMNS = (
    "RANK", "HOST", "STATE", "STEP/S", "COMPUTE", "NEGOT", "REDUCE", "WAIT", "FOR", "BYTES/S",
    "ARENA", "LOCKED", "QUEUE", "CPU",
)  # fmt: skip
_LINKS_SECONDS = 1.0  # a link that gets slow is to be seen within a second
_LEFT = {"HOST", "STATE", "FOR"}
LEFT_OUT_FIRST = (
    "ARENA", "LOCKED", "QUEUE", "NEGOT", "CPU", "BYTES/S", "REDUCE", "HOST", "COMPUTE", "STEP/S",
    "FOR",
)  # fmt: skip
"""Where a terminal is too narrow for all columns."""


@dataclass(frozen=True)
class Line:
    """A line or a row; what is amiss stands out."""

    cells: tuple[str, ...]
    amiss: bool = False


@dataclass(frozen=True)
class Picture:
    """A job at one moment, to be shown."""

    lines: tuple[Line, ...]
    rows: tuple[Line, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    """The same for programs."""


def picture(view: View, before: View | None) -> Picture:
    """Makes it of a look, and the one before, from which rates come."""
    done, waits = work(view), late(view)
    rates = {rank: _rates(view, before, rank) for rank in view.records}
    lines = [_headline(view, done)]
    if view.failure:
        lines.append(Line((f"the job has failed: {view.failure}",), True))
    lines += [Line((f"rank {rank} {why}",), True) for rank, why in view.silent.items()]
    if waits:
        lines.append(Line((f"oldest tensor: {_sentence(waits[0])}",), True))
    slowest = waits[0].missing[0] if waits else done.slowest
    if slowest is not None and not waits:
        part = f"the others wait {done.keeps[slowest]:.0%} of the time for it"
        lines.append(Line((f"slowest rank: {slowest}: {part}",), True))
    links = path(work(view, _LINKS_SECONDS)).reduce if view.across_hosts else 0.0
    if links >= BYTES_NOTICED:
        pace = _bytes(sum(map(_reduced, rates.values())) / len(rates))
        waits_for = f"all ranks wait {links:.0%} of the time for reductions"
        lines.append(
            Line((f"links between hosts: {waits_for}, {pace}/s of a rank's tensors",), True)
        )
    if view.records:
        lines.append(Line((_paths(rates),)))
    tuned = next((record.tuning for record in view.records.values() if record.tuning), None)
    lines += _tuning(tuned)
    ranks = [_facts(view, done, waits, rates, rank) for rank in range(view.size)]
    rows = [_row(facts, facts["rank"] == slowest or facts["silent"]) for facts in ranks]
    return Picture(
        tuple(lines), tuple(rows),
        {
            "job": view.job, "size": view.size, "failure": view.failure, "no_ranks": view.no_ranks,
            "steps_per_second": _per_second(done), "slowest": slowest,
            "oldest": vars(waits[0]) if waits else None, "ranks": ranks, "links": links,
            "autotune": asdict(tuned) if tuned else None,
        },
    )  # fmt: skip


def _tuning(told: Tuning | None) -> list[Line]:
    """What autotune does, and how its latest trial ended."""
    if told is None:
        return []
    lines = [f"autotune {headline(told)}"]
    if last := latest(told):
        lines.append(f"autotune tried {last}")
    return [Line((line,)) for line in lines]


def _headline(view: View, done: Work) -> Line:
    if view.no_ranks:
        return Line((f"job {view.job}: {view.no_ranks}",), True)
    hosts = len({record.host for record in view.records.values()})
    steps = _per_second(done)
    pace = f"{steps:.2f} steps/s" if steps else "no steps seen"
    if done.step and not steps:
        pace = f"no step for {done.idle:.1f} s"
    text = f"job {view.job}: {view.size} ranks, {hosts} host{'s' * (hosts != 1)}, {pace}"
    return Line((text,), bool(view.failure))


def _per_second(done: Work) -> float | None:
    if not done.step:
        return None
    return 0.0 if done.stands else 1 / done.step


def _sentence(one: Late) -> str:
    more = f" and {one.more} more" if one.more else ""
    verb = "waits" if len(one.waiting) == 1 else "wait"
    waiting, missing = (names(ranks, of_sentence=False) for ranks in (one.waiting, one.missing))
    return f"'{one.tensor}'{more}, {one.seconds:.1f} s: {waiting} {verb} for {missing}"


def _rates(view: View, before: View | None, rank: int) -> dict[str, float]:
    """By counter, a second; empty without a look before."""
    now, then = view.records[rank], before.records.get(rank) if before else None
    if then is None or now.pid != then.pid or now.clock <= then.clock:
        return {}
    seconds = now.clock - then.clock
    return {
        name: max(value - then.counters.get(name, 0), 0) / seconds
        for name, value in now.counters.items()
    }


def _reduced(rate: Mapping[str, float]) -> float:
    return sum(rate.get(name, 0) for name in PATHS)


def _paths(rates: Mapping[int, Mapping[str, float]]) -> str:
    sums = {word: sum(of.get(name, 0) for of in rates.values()) for name, word in PATHS.items()}
    shown = [f"{word} {_bytes(value)}" for word, value in sums.items() if value]
    return f"bytes/s by path: {', '.join(shown) or 'none'}"


def _facts(
    view: View,
    done: Work,
    waits: Sequence[Late],
    rates: Mapping[int, Mapping[str, float]],
    rank: int,
) -> dict[str, Any]:
    if rank not in view.records:
        return {"rank": rank, "silent": True, "state": view.silent[rank]}
    record, shares, rate = view.records[rank], done.shares[rank], rates[rank]
    counters = record.counters
    return {
        "rank": rank,
        "silent": False,
        "host": record.host,
        "pid": record.pid,
        "state": _state(view, waits, rank),
        "compute": shares.compute if done.seconds else None,
        "negotiate": shares.negotiate if done.seconds else None,
        "reduce": shares.reduce if done.seconds else None,
        "wait": sum(shares.waiting.values()) if done.seconds else None,
        "waits_for": _mostly(shares),
        "steps_per_second": _per_second(done),
        "bytes_per_second": _reduced(rate) if rate else None,
        "paths": {word: rate[name] for name, word in PATHS.items() if rate.get(name)},
        "arena_memory": counters.get("arena_in_use", 0),
        "arena_share": _share(
            rate.get("arena_bytes", 0),
            sum(rate.get(f"{path}_bytes", 0) for path in ("staged", "window", "link")),
        ),
        "locked_rounds": counters.get("plan_rounds", 0),
        "locked_share": (
            min(rate["plan_rounds"] * done.step, 1.0)
            if done.step and "plan_rounds" in rate
            else None
        ),
        "queue": len(record.calls),
        "cpu": view.cpu.get(rank),
        "late_seconds": next((one.seconds for one in waits if rank in one.missing), None),
    }


def _mostly(shares: Shares) -> int | None:
    return max(shares.waiting, key=lambda rank: shares.waiting[rank], default=None)


def _state(view: View, waits: Sequence[Late], rank: int) -> str:
    if view.failure:
        return "failed"
    for one in waits:
        if rank in one.missing:
            does = ", computes" if rank in view.busy else ", sleeps" if rank in view.cpu else ""
            return f"late {one.seconds:.1f} s{does}"
    for one in waits:
        if rank in one.waiting:
            return f"waits {one.seconds:.1f} s"
    return "runs"


def _row(facts: Mapping[str, Any], amiss: bool) -> Line:
    if facts["silent"]:
        state = facts["state"].partition(":")[0]
        return Line((str(facts["rank"]), "", state, *[""] * (len(COLUMNS) - 3)), amiss)
    waits_for = facts["waits_for"]
    steps = facts["steps_per_second"]
    return Line(
        (
            str(facts["rank"]), facts["host"], facts["state"],
            "-" if steps is None else f"{steps:.2f}",
            *(_percent(facts[part]) for part in ("compute", "negotiate", "reduce", "wait")),
            "" if waits_for is None else str(waits_for), _bytes(facts["bytes_per_second"]),
            _percent(facts["arena_share"]), _percent(facts["locked_share"]),
            str(facts["queue"]), _percent(facts["cpu"]),
        ),
        amiss,
    )  # fmt: skip


def _share(part: float, rest: float) -> float | None:
    return part / (part + rest) if part + rest else None


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plain(shown: Picture) -> str:
    """Writes it as text; what is amiss has a mark in front."""
    rows = [Line(COLUMNS), *shown.rows] if shown.rows else []
    widths = [max((len(row.cells[at]) for row in rows), default=0) for at in range(len(COLUMNS))]
    text = [("! " if line.amiss else "  ") + line.cells[0] for line in shown.lines]
    for row in rows:
        cells = [
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(COLUMNS, row.cells, widths, strict=True)
        ]
        text.append((("! " if row.amiss else "  ") + "  ".join(cells)).rstrip())
    return "\n".join(text)
