"""The CPU that an initialised job takes while it has nothing to do, all ranks together."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.adapters import HoroaccAdapter
from benchmarks.group import groups
from benchmarks.rank import Rank
from benchmarks.records import Records

_LIMIT = 0.5


def process(rank: Rank) -> int:
    """Uses the engine once, and says which process this is."""
    assert isinstance(rank.adapter, HoroaccAdapter)
    import torch

    rank.adapter.hvd.allreduce(torch.ones(1 << 16))
    return os.getpid()


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
