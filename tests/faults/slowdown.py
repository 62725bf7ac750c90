"""What strangers cost a job that runs: python tests/faults/slowdown.py [ROUNDS [CROWD]]

Two ranks reduce 1 MiB over TCP, as if on two hosts. In turn nobody is there for five seconds, and
then for five seconds there are strangers who say nothing (10,000 for each port), who have all just
dialled and whom the ranks let in and turn away as fast as they do, beside others who say something,
fifty a second at each port. The strangers get what processor the ranks leave, as if they were on a
machine of their own. Prints the steps a second and the ranks' processor time for a step, each
alone, beset and their ratio, and the medians of the ratios. Fails if the median pace is more than
5 % below that without strangers, or a step takes more than 5 % more processor time.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

import strangers
import wire_format
from launcher_jobs import Job
from linked_ranks import LinkedRanks

SECONDS = 5.0
SPEAKERS = 50  # a second
MOST = 0.05  # may they cost


def come(ports: list[strangers.Address], crowd: int, there: Event) -> None:
    """What the strangers do until they are ended."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    crowds = [strangers.Crowd(port, crowd) for port in ports]
    print(f"  {sum(one.await_dialled() for one in crowds)} have dialled", file=sys.stderr)
    there.set()
    while True:
        for port in ports:
            strangers.scan(port)
            strangers.wrong_epoch(port, wire_format.DATA)
        time.sleep(1 / SPEAKERS)


def processor_seconds(job: LinkedRanks) -> float:
    """What the ranks have used so far, in user and in kernel mode."""
    ticks = 0
    for one in job.ranks.values():
        fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pace(job: LinkedRanks) -> tuple[float, float]:
    """Steps a second and processor seconds a step, of the seconds from now on."""
    begin, begun, used = job.step_of(0), time.monotonic(), processor_seconds(job)
    job.wait_for(lambda: time.monotonic() - begun > SECONDS, "the end of the time")
    used = processor_seconds(job) - used
    said = [one for one in job.ranks[0].said if "step" in one and one["step"] >= begin]
    steps = said[-1]["step"] - said[0]["step"]
    return steps / (said[-1]["time"] - said[0]["time"]), used / steps


def main() -> int:
    """Measures both in turn; gives 1 if it is too much."""
    rounds, crowd = ([*map(int, sys.argv[1:]), *(5, 10_000)[len(sys.argv) - 1 :]])[:2]
    with tempfile.TemporaryDirectory() as folder:
        job = LinkedRanks(Job(), Path(folder), elements=1 << 18)
        for rank in range(2):
            job.start(rank)
        job.await_start()
        ports = [p for one in job.ranks.values() for p in strangers.ports_of(one.process.pid)]
        speeds, costs = [], []
        for _ in range(rounds):
            alone = pace(job)
            there = multiprocessing.Event()
            guests = multiprocessing.Process(target=come, args=(ports, crowd, there))
            guests.start()
            assert there.wait(60)
            beset = pace(job)
            guests.kill()
            guests.join()
            speeds.append(beset[0] / alone[0])
            costs.append(beset[1] / alone[1])
            print(
                f"alone {alone[0]:.0f}, beset {beset[0]:.0f} steps a second: {speeds[-1]:.3f}; "
                f"{alone[1] * 1e3:.2f}, {beset[1] * 1e3:.2f} ms of processor: {costs[-1]:.3f}",
                flush=True,
            )
            time.sleep(1)
        job.end()
    pace_kept, cost = statistics.median(speeds), statistics.median(costs)
    print(f"median {pace_kept:.3f}; {cost:.3f}")
    return int(pace_kept < 1 - MOST or cost > 1 + MOST)


if __name__ == "__main__":
    sys.exit(main())
