"""Allreduce of float32 in place, 1 KiB to 128 MiB, at 2, 4 and 8 ranks: our arena, our way for
private memory, Gloo, Open MPI, MPICH and the memory's own bound, all in the same minutes.
"""

from __future__ import annotations

from benchmarks import memory_bound
from benchmarks.group import Group, groups
from benchmarks.machine import available_bytes
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Rotation, Sample, Slices, compete

RANKS = (2, 4, 8)
SIZES = tuple(1 << shift for shift in (10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25, 26, 27))
_SIZES_OF_MANY = tuple(1 << shift for shift in (10, 14, 18, 20, 22, 24, 26))
"""For more ranks than cores: nothing else happens between these."""
_QUICK_SIZES = tuple(1 << shift for shift in (10, 16, 20, 24))
PEERS = ("gloo", "openmpi", "mpich")
ARENA, PRIVATE, BOUND = "horoacc arena", "horoacc private", "memory bound"
_MIB = 1 << 20
_HOPELESS_SECONDS = 5.0
"""Ranks that spin on the cores which their peers need can take minutes for one call."""


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    for ranks in RANKS[:2] if quick else RANKS:
        report_failure = records.reporter_of_failures(ranks)
        with groups(["horoacc", *PEERS, "bound"], ranks, report_failure) as up:
            too_slow: set[str] = set()
            for size in _sizes(ranks, quick):
                # Everybody's buffers exist at the same time, the bound's four times.
                if 12 * max(size * ranks, 4 * _MIB) > available_bytes():
                    report_failure(
                        "all", f"{size} bytes do not fit into the memory that is available"
                    )
                    continue
                _measure(records, up, size, ranks, Effort.of(quick, ranks), too_slow)


def _sizes(ranks: int, quick: bool) -> tuple[int, ...]:
    if quick:
        return _QUICK_SIZES
    return SIZES if ranks <= 4 else _SIZES_OF_MANY


def contenders(up: dict[str, Group]) -> list[Contender]:
    """Everybody who can reduce."""
    found = []
    if "horoacc" in up and not up["horoacc"].broken:
        found.append(Contender(ARENA, up["horoacc"], "arena"))
        found.append(Contender(PRIVATE, up["horoacc"], "private"))
    return found + [Contender(p, up[p]) for p in PEERS if p in up and not up[p].broken]


def _measure(
    records: Records,
    up: dict[str, Group],
    size: int,
    ranks: int,
    effort: Effort,
    too_slow: set[str],
) -> None:
    found = []
    for one in contenders(up):
        if one.name in too_slow:
            why = f"a smaller one took more than {_HOPELESS_SECONDS:g} s"
            records.write({"system": one.name, "ranks": ranks, "size": size, "skipped": why})
        else:
            found.append(one)
    entries = [Slices(one, Rotation, size, one.memory, one.how) for one in found]
    bound = up.get("bound")
    if bound is not None and size >= memory_bound.LEAST:
        entries += memory_bound.entries(bound, size, ranks)
    samples = compete(entries, effort, records.reporter_of_failures(ranks))
    for one in found:
        if one.name in samples:
            records.allreduce(one, size, samples[one.name])
            if samples[one.name].median > _HOPELESS_SECONDS:
                too_slow.add(one.name)
    least = memory_bound.record(records, bound, size, ranks, samples) if bound else 0.0
    _compare(records, size, ranks, samples, least)


def _compare(
    records: Records, size: int, ranks: int, samples: dict[str, Sample], bound: float
) -> None:
    peers = {name: samples[name].median for name in PEERS if name in samples}
    if not peers or size < _MIB:
        return
    best = min(peers, key=lambda name: peers[name])
    where = f"{size // _MIB} MiB at {ranks} ranks"
    facts = {"size": size, "ranks": ranks, "best_peer": best}
    if ARENA in samples:
        own = samples[ARENA].median
        decided = None
        if bound:
            decided = records.target(
                f"arena, share of the memory bound, {where}", 100 * bound / own, 80, "%", False,
                **facts,
            )  # fmt: skip
        limit = _least_ratio(size, ranks)
        if limit:
            met = peers[best] / own >= limit
            note = {} if decided is None or met == decided else {"note": "the bound decides"}
            records.target(
                f"arena against {best}, {where}", peers[best] / own, limit, "x", False,
                **facts, **note,
            )  # fmt: skip
    if PRIVATE in samples:
        beyond = bool(bound) and peers[best] < 2 * bound
        records.target(
            f"private memory against {best}, {where}", peers[best] / samples[PRIVATE].median, 2,
            "x", False, **facts,
            **({"note": f"the bound itself is {peers[best] / bound:.2g} x"} if beyond else {}),
        )  # fmt: skip


def _least_ratio(size: int, ranks: int) -> float:
    """How many times faster than the best peer the arena should be; 0: nothing is asked."""
    if ranks == 2:
        return 4 if size <= 8 * _MIB else 6
    if ranks == 4:
        return 4 if size < 64 * _MIB else 10
    return 0
