"""All-to-all on two rails with a slow spine between them: directly, and aggregated by rails."""

from __future__ import annotations

import statistics
import subprocess

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, Order, measure, order
from benchmarks.records import Records

RATE, SPINE = 1e9, 100e6
LOCAL = 4
ROUNDS = 3
HOSTS = f"h1:{LOCAL},h2:{LOCAL}"
ONE_A_RAIL = [0, 1, LOCAL, LOCAL + 1]
"""The first two ranks of each host: the interfaces go to local ranks in turn."""
_BASE = {"HOROACC_NETWORK_INTERFACES": "eth0,eth1", "HOROACC_TCP_STREAMS": "1"}


def run(records: Records, quick: bool) -> None:
    """Measures both algorithms, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    size, turns = (MIB // 8, 1) if quick else (MIB, 3)
    names = "direct_all_to_all", "rail_all_to_all"
    # As many bytes leave a host of two ranks that send four times as much to each.
    work = [order("alltoall", size, turns), order("alltoall", 4 * size, turns, ranks=[ONE_A_RAIL])]
    small = [order("alltoall", 1 << 10, turns, batch=20)]
    large: dict[str, list[tuple[list[Order], int]]] = {name: [] for name in names}
    try:
        with Laboratory(Network(rails=2, rate=RATE, spine_rate=SPINE)) as lab:
            for _ in range(1 if quick else ROUNDS):
                for name in names:
                    large[name].append(_job(lab, name, work if name == names[1] else work[:1]))
            direct_few, rails_few = (_job(lab, name, small)[0][0] for name in names)
    except subprocess.SubprocessError as error:
        records.complain("horoacc", 2 * LOCAL, str(error))
        return
    direct = _median([told[0] for told, _ in large[names[0]]])
    rails, part = (_median([told[k] for told, _ in large[names[1]]]) for k in range(2))
    across, near_zero = (statistics.median(moved for _, moved in large[name]) for name in names)
    _tell(records, "direct", direct, across)
    _tell(records, "by rails", rails, near_zero)
    _tell(records, "by rails, one rank a rail", part, near_zero)
    for what, values in [
        ("connections that one 1 KiB all-to-all opens",
         [w["opened"] for w in (direct_few, rails_few)]),
        ("packets of h1 for a 1 KiB all-to-all",
         [_sum(w["packets"]) for w in (direct_few, rails_few)]),
        ("time of a 1 KiB all-to-all", [w["time"] for w in (direct_few, rails_few)]),
    ]:  # fmt: skip
        records.write({"figure": what, "direct": values[0], "by rails": values[1]})
        print(f"  {what}: direct {values[0]:.4g}, by rails {values[1]:.4g}", flush=True)
    payload = size * LOCAL * LOCAL
    records.target("all-to-all by rails: the spine's bytes over a host's", near_zero / payload,
                   0.01, "", at_most=True)  # fmt: skip
    records.target("all-to-all by rails against direct: gain over that of the links' rates",
                   direct["time"] / rails["time"] / (RATE / SPINE), 0.7, "x",
                   at_most=False)  # fmt: skip
    records.target("all-to-all by rails: connections between two hosts, of L ranks each over L",
                   rails_few["opened"] / LOCAL, 1, "", at_most=True)  # fmt: skip
    records.target("all-to-all by rails: packets of 1 KiB parts over those of the direct way",
                   _sum(rails_few["packets"]) / _sum(direct_few["packets"]), 0.5, "x",
                   at_most=True)  # fmt: skip
    records.target("one rank a rail against all ranks: bytes a second and link",
                   rails["time"] / part["time"], 0.95, "x", at_most=False)  # fmt: skip


def _median(rounds: list[Order]) -> Order:
    return rounds[-1] | {"time": statistics.median(told["time"] for told in rounds)}


def _job(lab: Laboratory, algorithm: str, work: list[Order]) -> tuple[list[Order], int]:
    """What a job measured, and what crossed the spine in either direction meanwhile."""
    before = lab.traffic()["spine"]
    told = measure(lab, HOSTS, [(_BASE | {"HOROACC_ALGORITHM": algorithm}, work)])
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
