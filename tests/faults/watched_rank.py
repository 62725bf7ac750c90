"""A rank of which watching_cost.py measures: python watched_rank.py PAIRS SAME SIZE...

Prints a line of JSON a pair: the median seconds of an allreduce of each size in bytes, watched and
unwatched, which is the same if SAME is 1.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import numpy as np

import horoacc as hvd

SECONDS = 0.1
UNWATCHED = {
    "HOROACC_FLIGHT_EVENTS": "0",
    "HOROACC_HEARTBEAT_WARNING_SECONDS": "0",
    "HOROACC_HEARTBEAT_TIMEOUT_SECONDS": "0",
    "HOROACC_STALL_CHECK_DISABLE": "1",
}


def median_call(size: int) -> float:
    """The median seconds of the calls within a short time."""
    array, times = np.ones(size // 4, np.float32), []
    hvd.allreduce_(array, op=hvd.Average, name=f"of {size}")  # the first is agreed on
    end = time.perf_counter() + SECONDS
    while True:
        for _ in range(100):
            begin = time.perf_counter()
            hvd.allreduce_(array, op=hvd.Average, name=f"of {size}")
            times.append(time.perf_counter() - begin)
        over = np.array([time.perf_counter() > end])
        if hvd.allreduce(over, op=hvd.Max, name="over")[0]:
            return statistics.median(times)


def measure(watched: bool, sizes: list[int]) -> list[float]:
    """Joins, measures, and leaves."""
    for name, value in UNWATCHED.items():
        os.environ.pop(name, None)
        if not watched:
            os.environ[name] = value
    hvd.init()
    took = [median_call(size) for size in sizes]
    hvd.shutdown()
    return took


def main(pairs: int, same: bool, sizes: list[int]) -> None:
    """In every second pair the unwatched one is first."""
    for pair in range(pairs):
        took = {}
        for how in ("watched", "unwatched")[:: (-1) ** pair]:
            took[how] = measure(how == "watched" or same, sizes)
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", [*map(int, sys.argv[3:])])
