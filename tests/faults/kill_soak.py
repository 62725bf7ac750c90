"""Kills ranks at random moments: python tests/faults/kill_soak.py [--times 100] [--hosts 2+2]

Each time a job of its own is at reductions of 4 MiB when one of its ranks is killed. Prints how
long the survivors took to be told, and fails if that was longer than docs/faults.md says.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from faulted_jobs import FaultedJob, expect_told
from launcher_jobs import Job

P99_SECONDS = 1.0
WORST_SECONDS = 3.0


def kill_once(size: int, moment: float, victim: int, folder: Path, **variables: str) -> float:
    """Kills a rank in the middle of things.

    Args:
        size: The number of ranks.
        moment: Seconds from when all ranks reduce until one is killed.
        victim: Which one.
        folder: An empty directory.
        variables: Of the ranks.

    Returns:
        Seconds until the last survivor had its error.
    """
    with Job() as job:
        faulted = FaultedJob(job)
        faulted.start(size, "collective", victim, folder / "go", **variables)
        faulted.await_phase()
        time.sleep(moment)
        killed = time.monotonic_ns()
        faulted.signal(victim, signal.SIGKILL)
        assert faulted.end() == 128 + signal.SIGKILL
        told = expect_told(faulted, size, victim, killed)
        assert all(error["error"] == "PeerLost" for error in told), told
        return max(float(error["at_ns"] - killed) for error in told) / 1e9


def main() -> int:
    """Gives 1 if it took too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", default="", help="as for HOROACC_PARTED_HOSTS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    times = []
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as folder:
            victim = chance.randrange(options.ranks)
            times.append(
                kill_once(
                    options.ranks,
                    chance.random(),
                    victim,
                    Path(folder),
                    HOROACC_PARTED_HOSTS=options.hosts,
                )
            )
    times.sort()
    p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
    print(
        f"{len(times)} kills: median {times[len(times) // 2] * 1e3:.0f} ms, "
        f"p99 {p99 * 1e3:.0f} ms, worst {times[-1] * 1e3:.0f} ms"
    )
    return 0 if p99 <= P99_SECONDS and times[-1] <= WORST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
