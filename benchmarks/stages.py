"""What overlaps, and what few rounds are worth: CPU-Reduce's stages, and trees against the ring."""

from __future__ import annotations

import statistics
import subprocess

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, measure, order, shape
from benchmarks.records import Records

PIPE_RATE = 4e9
"""At which the cores of this machine can do all stages in the time that the link needs for its own.
At twice as much the work of all stages, one after the other or not, fills two cores."""
TREE_HOSTS, TREE_RATE = 16, 100e6


def run(records: Records, quick: bool) -> None:
    """Measures both, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    try:
        _pipeline(records, 4 * MIB if quick else 64 * MIB, 1 if quick else 5)
        _trees(records, MIB if quick else 64 * MIB, 1 if quick else 5)
    except subprocess.SubprocessError as error:
        records.report_failure("horoacc", TREE_HOSTS, str(error))


def _pipeline(records: Records, size: int, turns: int) -> None:
    forced = {"HOROACC_ALGORITHM": "cpu_reduce"}
    whole = [order("allreduce", size, turns)]
    inside = [order("allreduce", size, turns, ranks=[[0, 1], [2, 3]])]
    across = [order("allreduce", size, turns, ranks=[[0, 2]])]
    with Laboratory(Network(rate=PIPE_RATE)) as lab:
        told = [one["time"] for one in measure(lab, shape((2, 2)), [
            (forced, whole), (forced | {"HOROACC_WINDOW_BYTES": str(size)}, whole),
            (forced, inside), (forced, across),
        ] * 3)]  # fmt: skip
    windows, one, within, between = (statistics.median(told[k::4]) for k in range(4))
    for what, seconds in [("in windows", windows), ("in one window", one),
                          ("stages inside the hosts alone", within),
                          ("stage between the hosts alone", between)]:  # fmt: skip
        records.write({"figure": f"cpu_reduce {what}", "time": seconds, "bytes": size})
        print(f"  cpu_reduce, {size >> 20} MiB, {what}: {seconds * 1e3:.1f} ms", flush=True)
    records.target("cpu_reduce in windows over its slowest stage",
                   windows / max(within, between), 1.15, "x", at_most=True)  # fmt: skip
    records.target("cpu_reduce in one window over the sum of its stages",
                   one / (within + between), 0.9, "x", at_most=False)  # fmt: skip


def _trees(records: Records, size: int, turns: int) -> None:
    names = ("double_tree", "ring")
    few = [order("allreduce", 4 << 10, turns, batch=10)]
    for hosts in (8, TREE_HOSTS):
        entries = [({"HOROACC_ALGORITHM": name}, few) for name in names] * 3
        with Laboratory(Network(hosts=hosts)) as lab:
            told = [o["time"] for o in measure(lab, shape((1,) * hosts), entries)]
        tree, ring = statistics.median(told[0::2]), statistics.median(told[1::2])
        print(f"  4 KiB on {hosts} hosts: double_tree {tree * 1e3:.2f} ms, ring {ring * 1e3:.2f}")
        records.write({"figure": f"4 KiB on {hosts} hosts", "double_tree": tree, "ring": ring})
        records.target(f"4 KiB on {hosts} hosts of one rank: the ring's time over the double "
                       "tree's", ring / tree, 1, "x", at_most=False)  # fmt: skip
    large = [order("allreduce", 4 << 10, 1), order("allreduce", size, 1, warm=0)]
    entries = [({"HOROACC_ALGORITHM": name}, large) for name in names] * min(turns, 3)
    with Laboratory(Network(hosts=TREE_HOSTS, rate=TREE_RATE)) as lab:
        told = measure(lab, shape((1,) * TREE_HOSTS), entries)
        tree, ring = (statistics.median(one["time"] for one in told[k::4]) for k in (1, 3))
    print(f"  {size >> 20} MiB on {TREE_HOSTS} hosts at {TREE_RATE / 1e6:g} Mbit/s: double_tree "
          f"{tree:.2f} s, ring {ring:.2f} s")  # fmt: skip
    records.write({"figure": "large vector", "bytes": size, "double_tree": tree, "ring": ring})
    records.target(f"{size >> 20} MiB on {TREE_HOSTS} hosts: the double tree's time over the "
                   "ring's", tree / ring, 1.1, "x", at_most=True)  # fmt: skip
