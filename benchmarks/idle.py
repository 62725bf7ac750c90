"""The CPU that an initialised job takes while it has nothing to do, all ranks together; and what it
costs a rank that computes and does not communicate.

For the second, two ranks train a network each for itself, in blocks that take turns: the engine is
up in one and has been shut down in the other. As many steps as a block has go before it, so that it
does not begin right after init() or shutdown(). Each pair gives a ratio, and the interval of their
median judges.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.adapters import HoroaccAdapter
from benchmarks.group import Group, GroupFailed, groups
from benchmarks.lockstep import ALONE, RANKS, Copy, train
from benchmarks.rank import Rank
from benchmarks.records import Records
from horoacc.trials import interval

_LIMIT = 0.1
_PAIRS, _BLOCK_SECONDS, _SLOWER = 200, 0.15, 1.0
_NETS = {"ResNet-20-shaped CNN, batch 16": "cnn", "100 x Linear(64,64), batch 32": "deep"}


def process(rank: Rank) -> int:
    """Uses the engine once, and says which process this is."""
    assert isinstance(rank.adapter, HoroaccAdapter)
    import torch

    rank.adapter.hvd.allreduce(torch.ones(1 << 16))
    return os.getpid()


def build(rank: Rank, net: str) -> None:
    """Makes a network that this rank trains for itself."""
    rank.kept["meet"] = {ALONE: lambda: None}
    rank.kept[ALONE] = Copy(rank, net, "optimizer", ALONE)


def compute(rank: Rank, steps: int, count: int) -> list[list[float]]:
    """Trains it in turns; gives the seconds of a step without the engine, and with it."""
    assert isinstance(rank.adapter, HoroaccAdapter)
    hvd, found = rank.adapter.hvd, []
    for turn in range(count):
        pair = {}
        for up in (False, True) if turn % 2 else (True, False):
            if up != hvd.is_initialized():
                (hvd.init if up else hvd.shutdown)()
            train(rank, ALONE, steps)  # init() leaves pages to be mapped, and cold caches
            pair[up] = train(rank, ALONE, steps)
        found.append([pair[False], pair[True]])
    if not hvd.is_initialized():
        hvd.init()
    return found


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process's threads, by the scheduler's own count in nanoseconds."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the target."""
    seconds = 2.0 if quick else 10.0
    jobs = [("horoacc", 2), ("horoacc over mpi", 2), ("horoacc", 8)]
    for system, ranks in jobs[:2] if quick else jobs:
        with groups([system], ranks, records.reporter_of_failures(ranks)) as up:
            if system not in up:
                continue
            pids = up[system].run(process)
            time.sleep(1.0)
            before, begin = sum(map(cpu_seconds, pids)), time.monotonic()
            time.sleep(seconds)
            used = sum(map(cpu_seconds, pids)) - before
            share = 100 * used / (time.monotonic() - begin)
            what = f"{system}, {ranks} ranks without work, share of one core"
            records.figure(what, round(share, 4), "%", up[system], seconds=seconds)
            records.target(what, share, _LIMIT, "%", True)
    report_failure = records.reporter_of_failures(RANKS)
    with groups(["horoacc"], RANKS, report_failure, False, HOROACC_ARENA="gradients") as up:
        try:
            for name, net in _NETS.items() if "horoacc" in up else ():
                _compare(records, up["horoacc"], name, net, 6 if quick else _PAIRS)
        except GroupFailed as error:
            report_failure("horoacc", str(error))


def _compare(records: Records, group: Group, name: str, net: str, count: int) -> None:
    group.run(build, net)
    steps = max(1, round(_BLOCK_SECONDS / max(group.run(train, ALONE, 3))))
    ratios, took = [], []
    for pair in zip(*group.run(compute, steps, count), strict=True):
        without, up = (sum(of) / RANKS for of in zip(*pair, strict=True))
        ratios.append(100 * (up / without - 1))
        took.append(without)
    low, median, high = interval(ratios)
    records.target(
        f"{name}: a step without communication, over one without the engine", median, _SLOWER, "%",
        True, interval=(low, high), note=f"{1e3 * interval(took).median:.3g} ms without",
        pairs=count, steps=steps,
    )  # fmt: skip
