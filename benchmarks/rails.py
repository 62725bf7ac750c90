"""All-to-all on two rails with a slow spine between them: directly, and aggregated by rails."""

from __future__ import annotations

import subprocess

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, Order, measure, order
from benchmarks.records import Records

RATE, SPINE = 1e9, 100e6
LOCAL = 4
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
    try:
        with Laboratory(Network(rails=2, rate=RATE, spine_rate=SPINE)) as lab:
            direct, across = _job(lab, "direct_all_to_all", [order("alltoall", size, turns)])
            small = order("alltoall", 1 << 10, turns, batch=20)
            few = {name: _job(lab, name, [small])[0][0] for name in
                   ("direct_all_to_all", "rail_all_to_all")}  # fmt: skip
            # As many bytes leave a host of two ranks that send four times as much to each.
            work = [order("alltoall", size, turns),
                    order("alltoall", 4 * size, turns, ranks=[ONE_A_RAIL])]  # fmt: skip
            rails, near_zero = _job(lab, "rail_all_to_all", work)
    except subprocess.SubprocessError as error:
        records.complain("horoacc", 2 * LOCAL, str(error))
        return
    _tell(records, "direct", direct[0], across)
    _tell(records, "by rails", rails[0], near_zero)
    _tell(records, "by rails, one rank a rail", rails[1], near_zero)
    ways = few["direct_all_to_all"], few["rail_all_to_all"]
    for what, values in [
        ("connections that one 1 KiB all-to-all opens", [w["opened"] for w in ways]),
        ("packets of h1 for a 1 KiB all-to-all", [_sum(w["packets"]) for w in ways]),
        ("time of a 1 KiB all-to-all", [w["time"] for w in ways]),
    ]:
        records.write({"figure": what, "direct": values[0], "by rails": values[1]})
        print(f"  {what}: direct {values[0]:.4g}, by rails {values[1]:.4g}", flush=True)
    payload = size * LOCAL * LOCAL
    records.target("all-to-all by rails: the spine's bytes over a host's", near_zero / payload,
                   0.1, "", at_most=True)  # fmt: skip
    records.target("all-to-all by rails against direct: time",
                   direct[0]["time"] / rails[0]["time"], 2, "x", at_most=False)  # fmt: skip
    records.target("all-to-all by rails: connections between two hosts",
                   ways[1]["opened"], LOCAL, "", at_most=True)  # fmt: skip
    records.target("one rank a rail against all ranks: bytes a second and link",
                   rails[0]["time"] / rails[1]["time"], 0.95, "x", at_most=False)  # fmt: skip


def _job(lab: Laboratory, algorithm: str, work: list[Order]) -> tuple[list[Order], int]:
    """What a job measured, and what crossed the spine in either direction meanwhile."""
    before = lab.traffic()["spine"]
    told = measure(lab, HOSTS, [(_BASE | {"HOROACC_ALGORITHM": algorithm}, work)])
    moved = lab.traffic()["spine"] - before
    return told, moved.sent_bytes + moved.received_bytes


def _sum(counters: dict[str, int]) -> int:
    return sum(count for link, count in counters.items() if link != "lo")


def _tell(records: Records, way: str, told: Order, spine: int) -> None:
    sent = _sum(told["sent"])
    rate = sent * 8 / 2 / told["time"]
    records.write({"figure": f"all-to-all {way}", "time": told["time"], "bytes": told["bytes"],
                   "sent": told["sent"], "spine": spine, "rate_of_a_link": rate})  # fmt: skip
    print(f"  all-to-all {way}: {told['time'] * 1e3:.1f} ms, h1 sends {sent >> 10} KiB, "
          f"{rate / 1e6:.0f} Mbit/s a link; the job's bytes over the spine: {spine >> 10} KiB",
          flush=True)  # fmt: skip
