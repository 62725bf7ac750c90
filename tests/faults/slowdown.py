"""What strangers cost a job that runs: python tests/faults/slowdown.py [ROUNDS [CROWD]]

Two ranks reduce 1 MiB over TCP, as if on two hosts. In turn nobody is there for five seconds, and
then for five seconds a crowd that holds as many idle connections as it gets, beside strangers who
say something, fifty a second. Prints the steps a second of both, and the median of the ratios.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

import strangers
import wire_format
from launcher_jobs import Job
from linked_ranks import LinkedRanks

SECONDS = 5.0
SPEAKERS = 50  # a second


def come(ports: list[strangers.Address], crowd: int) -> None:
    """What the strangers do until they are ended."""
    crowds = [strangers.Crowd(port, crowd // len(ports)) for port in ports]
    print(f"  {sum(len(one.links) for one in crowds)} connections", file=sys.stderr)
    while True:
        for port in ports:
            strangers.scan(port)
            strangers.wrong_secret(port, wire_format.DATA)
            time.sleep(1 / SPEAKERS)


def steps_a_second(job: LinkedRanks) -> float:
    """Of the seconds from now on."""
    begin, begun = job.step_of(0), time.monotonic()
    job.wait_for(lambda: time.monotonic() - begun > SECONDS, "the end of the time")
    said = [one for one in job.ranks[0].said if "step" in one and one["step"] >= begin]
    return float((said[-1]["step"] - said[0]["step"]) / (said[-1]["time"] - said[0]["time"]))


def main() -> None:
    """Measures both in turn."""
    rounds, crowd = ([*map(int, sys.argv[1:]), *(5, 10_000)[len(sys.argv) - 1 :]])[:2]
    with tempfile.TemporaryDirectory() as folder:
        job = LinkedRanks(Job(), Path(folder), elements=1 << 18)
        for rank in range(2):
            job.start(rank)
        job.await_start()
        ports = [p for one in job.ranks.values() for p in strangers.ports_of(one.process.pid)]
        ratios = []
        for _ in range(rounds):
            alone = steps_a_second(job)
            guests = multiprocessing.Process(target=come, args=(ports, crowd))
            guests.start()
            beset = steps_a_second(job)
            guests.kill()
            guests.join()
            ratios.append(beset / alone)
            print(
                f"alone {alone:.0f}, beset {beset:.0f} steps a second: {ratios[-1]:.3f}", flush=True
            )
            time.sleep(1)
        print(f"median {statistics.median(ratios):.3f}")
        job.end()


if __name__ == "__main__":
    main()
