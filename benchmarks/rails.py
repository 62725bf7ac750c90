"""All-to-all on two rails with a slow spine between them: directly, and aggregated by rails."""

from __future__ import annotations

import statistics
import subprocess

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, Order, measure, order, shape
from benchmarks.records import Records

RATE, SPINE = 1e9, 100e6
RAILS = 2
LOCAL = 4
ROUNDS = 3
ONE_A_RAIL = [0, 1, LOCAL, LOCAL + 1]
"""The first two ranks of each host: the interfaces go to local ranks in turn."""
NAMES = "direct_all_to_all", "rail_all_to_all"
_BASE = {"HOROACC_NETWORK_INTERFACES": ",".join(f"eth{rail}" for rail in range(RAILS))}


def run(records: Records, quick: bool) -> None:
    """Measures both algorithms, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    size, turns = (MIB // 8, 1) if quick else (MIB, 3)
    try:
        with Laboratory(Network(rails=RAILS, rate=RATE, spine_rate=SPINE)) as lab:
            for local in (RAILS, LOCAL):
                _small(records, lab, local, turns)
            _large(records, lab, size, turns, 1 if quick else ROUNDS)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", 2 * LOCAL, str(error))


def _small(records: Records, lab: Laboratory, local: int, turns: int) -> None:
    """What 1 KiB for each rank takes between two hosts."""
    work = [order("alltoall", 1 << 10, turns, batch=20)]
    direct, rails = (_job(lab, local, name, work)[0][0] for name in NAMES)
    where = f"{local} ranks a host"
    calls = [told["sends"] + told["receives"] for told in (direct, rails)]
    packets = [_sum(told["packets"]) for told in (direct, rails)]
    for what, values in [
        ("connections that it opens", [direct["opened"], rails["opened"]]),
        ("system calls of h1", calls),
        ("system calls of h1 that send", [direct["sends"], rails["sends"]]),
        ("packets of h1", packets),
        ("time", [direct["time"], rails["time"]]),
    ]:
        figure = f"1 KiB all-to-all, {where}: {what}"
        records.write({"figure": figure, "direct": values[0], "by rails": values[1]})
        print(f"  {figure}: direct {values[0]:.4g}, by rails {values[1]:.4g}", flush=True)
    what = f"all-to-all by rails, {where}"
    shared = f"of {local} rails" if local == RAILS else "of one for each local rank"
    records.target(f"{what}: connections between two hosts over those {shared}",
                   rails["opened"] / local, 1, "x", at_most=True)  # fmt: skip
    records.target(f"{what}: system calls that send over those of the direct way, times L",
                   rails["sends"] / direct["sends"] * local, 1.1, "x", at_most=True)  # fmt: skip
    records.target(f"{what}: packets of 1 KiB parts over those of the direct way, times L",
                   packets[1] / packets[0] * local, 1.5, "x", at_most=True)  # fmt: skip


def _large(records: Records, lab: Laboratory, size: int, turns: int, rounds: int) -> None:
    """What the spine carries, and how long it takes."""
    # As many bytes leave a host of two ranks that send four times as much to each.
    work = [order("alltoall", size, turns), order("alltoall", 4 * size, turns, ranks=[ONE_A_RAIL])]
    jobs: dict[str, list[tuple[list[Order], int]]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name in NAMES:
            jobs[name].append(_job(lab, LOCAL, name, work if name == NAMES[1] else work[:1]))
    direct = _median([told[0] for told, _ in jobs[NAMES[0]]])
    rails, part = (_median([told[k] for told, _ in jobs[NAMES[1]]]) for k in range(2))
    across, near_zero = (statistics.median(moved for _, moved in jobs[name]) for name in NAMES)
    _tell(records, "direct", direct, across)
    _tell(records, "by rails", rails, near_zero)
    _tell(records, "by rails, one rank a rail", part, near_zero)
    payload = size * LOCAL * LOCAL
    records.target("all-to-all by rails: the spine's bytes over a host's", near_zero / payload,
                   0.01, "", at_most=True)  # fmt: skip
    records.target("all-to-all by rails against direct: gain over that of the links' rates",
                   direct["time"] / rails["time"] / (RATE / SPINE), 0.7, "x",
                   at_most=False)  # fmt: skip
    records.target("one rank a rail against all ranks: bytes a second and link",
                   rails["time"] / part["time"], 0.95, "x", at_most=False)  # fmt: skip


def _median(rounds: list[Order]) -> Order:
    return rounds[-1] | {"time": statistics.median(told["time"] for told in rounds)}


def _job(lab: Laboratory, local: int, algorithm: str, work: list[Order]) -> tuple[list[Order], int]:
    """What a job measured, and what crossed the spine in either direction meanwhile."""
    before = lab.traffic()["spine"]
    told = measure(lab, shape((local, local)), [(_BASE | {"HOROACC_ALGORITHM": algorithm}, work)])
    moved = lab.traffic()["spine"] - before
    return told, moved.sent_bytes + moved.received_bytes


def _sum(counters: dict[str, int]) -> int:
    return sum(count for link, count in counters.items() if link != "lo")


def _tell(records: Records, way: str, told: Order, spine: float) -> None:
    sent = _sum(told["sent"])
    rate = sent * 8 / 2 / told["time"]
    records.write({"figure": f"all-to-all {way}", "time": told["time"], "bytes": told["bytes"],
                   "sent": told["sent"], "spine": spine, "rate_of_a_link": rate})  # fmt: skip
    print(f"  all-to-all {way}: {told['time'] * 1e3:.1f} ms, h1 sends {sent >> 10} KiB, "
          f"{rate / 1e6:.0f} Mbit/s a link; the job's bytes over the spine: {spine / 1024:.0f} KiB",
          flush=True)  # fmt: skip
