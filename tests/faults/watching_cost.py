"""What the watching costs: python tests/faults/watching_cost.py [PAIRS [ROUNDS]]

Two jobs of two ranks live side by side, one as it is started, the other without record of its
flight, without looks at the heartbeats and without the stall watch. In turn one of them reduces for
0.2 s and the other sleeps. Ranks wait awake: then a call is shortest, and what is added to it shows
most. How a job comes to lie in memory makes it faster or slower than the next one for as long as it
lives, so it is done with several pairs of jobs, whose first one is the watched one in turn. Prints,
for each size, the median times, and the median of the pairs' ratios with the range in which it lies
(of 95 in 100 drawings of as many pairs from these). Fails if even the range's lower end is above
1.02. With --same both jobs are watched: what is printed then is what chance does.
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


def ratios_of_a_pair(
    variables: dict[str, dict[str, str]], rounds: int, times: dict[int, dict[str, list[float]]]
) -> dict[int, float]:
    """Measures both jobs in turn, and another one first in every second round.

    Args:
        variables: Of the jobs, by name, in the order in which they start.
        rounds: How often each job is measured at each size.
        times: What was measured is added here, by size and name.

    Returns:
        The median ratio of the rounds, watched to unwatched, by size.
    """
    jobs = {name: MeasuredJob(own) for name, own in variables.items()}
    ratios = {}
    for size in SIZES:
        found = []
        for round in range(rounds):
            took = {name: jobs[name].measure(size) for name in sorted(jobs, reverse=round % 2 == 0)}
            found.append(took["watched"] / took["unwatched"])
            for name, seconds in took.items():
                times[size][name].append(seconds)
        ratios[size] = statistics.median(found)
    for job in jobs.values():
        job.end()
    return ratios


def main() -> int:
    """Gives 1 if it is too much."""
    numbers = [int(word) for word in sys.argv[1:] if word != "--same"]
    pairs, rounds = [*numbers, *(11, 7)[len(numbers) :]][:2]
    other = {} if "--same" in sys.argv else UNWATCHED
    times: dict[int, dict[str, list[float]]] = {
        size: {"watched": [], "unwatched": []} for size in SIZES
    }
    ratios: dict[int, list[float]] = {size: [] for size in SIZES}
    for pair in range(pairs):
        order = [("watched", {}), ("unwatched", other)]
        found = ratios_of_a_pair(dict(order[:: (-1) ** pair]), rounds, times)
        for size, ratio in found.items():
            ratios[size].append(ratio)
    too_much = False
    for size in SIZES:
        told = ", ".join(
            f"{name} {statistics.median(took) * 1e6:.2f} us" for name, took in times[size].items()
        )
        found = ratios[size]
        least, most = range_of_median(found)
        too_much |= least > MOST
        print(
            f"{size} bytes: {told}, ratio {statistics.median(found):.3f} "
            f"({least:.3f} to {most:.3f}; pairs {min(found):.3f} to {max(found):.3f})",
            flush=True,
        )
    return int(too_much)


if __name__ == "__main__":
    sys.exit(main())
