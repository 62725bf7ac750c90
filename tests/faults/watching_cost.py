"""What the watching costs: python tests/faults/watching_cost.py [ROUNDS]

Two jobs of two ranks live side by side, one as it is started, the other without record of its
flight, without looks at the heartbeats and without the stall watch. In turn one of them reduces for
0.2 s and the other sleeps. Ranks wait awake: then a call is shortest, and what is added to it shows
most. Prints, for each size, the median times, and the median of the rounds' ratios with the range
in which it lies (of 95 in 100 drawings of as many rounds from these). Fails if even the range's
lower end is above 1.02.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from linked_ranks import free_port

SIZES = (1 << 10, 64 << 10, 1 << 20)
UNWATCHED = {
    "HOROACC_FLIGHT_EVENTS": "0",
    "HOROACC_SILENCE_WARNING_SECONDS": "0",
    "HOROACC_HANG_LIMIT_SECONDS": "0",
    "HOROACC_STALL_CHECK_DISABLE": "1",
}
MOST = 1.02
RANK = """
import json, sys, time
import numpy as np
import horoacc as hvd
hvd.init()
while True:
    line = sys.stdin.readline() if hvd.rank() == 0 else ""
    size = int(hvd.broadcast(np.array([int(line or 0)]), 0, name="size")[0])
    if size == 0:
        break
    array, times = np.ones(size // 4, np.float32), []
    end = time.perf_counter() + 0.2
    for step in range(10**9):
        begin = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Average, name=f"of {size}")
        times.append(time.perf_counter() - begin)
        if step % 100 == 99:
            over = np.array([time.perf_counter() > end])
            if hvd.allreduce(over, op=hvd.Max, name="over")[0]:
                break
    if hvd.rank() == 0:
        print(json.dumps(float(np.median(times))), flush=True)
hvd.shutdown()
"""


class MeasuredJob:
    """Two ranks, which reduce when they are told to."""

    def __init__(self, variables: dict[str, str]) -> None:
        common = {
            "HOROACC_SIZE": "2", "HOROACC_LOCAL_SIZE": "2", "HOROACC_CROSS_SIZE": "1",
            "HOROACC_CROSS_RANK": "0", "HOROACC_SECRET": secrets.token_hex(32),
            "HOROACC_RENDEZVOUS": f"127.0.0.1:{free_port()}",
            "HOROACC_SPIN_MICROSECONDS": "2000",
        }  # fmt: skip
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=os.environ | common | variables
                | {"HOROACC_RANK": str(rank), "HOROACC_LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip

    def measure(self, size: int) -> float:
        """Gives the median seconds of an allreduce of those of 0.2 s."""
        first = self.ranks[0]
        assert first.stdin and first.stdout
        first.stdin.write(f"{size}\n".encode())
        first.stdin.flush()
        return float(json.loads(first.stdout.readline()))

    def end(self) -> None:
        for rank in self.ranks:
            rank.communicate()
            assert rank.returncode == 0


def range_of_median(values: list[float]) -> tuple[float, float]:
    """Where the median of as many values lies, 95 times of 100."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], medians[974]


def main() -> int:
    """Measures both in turn, and another one first in every second round."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 101
    too_much = False
    jobs = {"watched": MeasuredJob({}), "unwatched": MeasuredJob(UNWATCHED)}
    for size in SIZES:
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for round in range(rounds):
            for name in sorted(jobs, reverse=round % 2 == 0):
                times[name].append(jobs[name].measure(size))
        ratios = [w / u for w, u in zip(times["watched"], times["unwatched"], strict=True)]
        told = ", ".join(f"{name} {statistics.median(t) * 1e6:.2f} us" for name, t in times.items())
        least, most = range_of_median(ratios)
        too_much |= least > MOST
        print(
            f"{size} bytes: {told}, ratio {statistics.median(ratios):.3f} "
            f"({least:.3f} to {most:.3f})",
            flush=True,
        )
    for job in jobs.values():
        job.end()
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
