"""The cost of unauthenticated peers to a job: python tests/faults/slowdown.py [ROUNDS [CROWD]]

Two ranks are joined over TCP, as if on two hosts. They run for five seconds alone, and for five
seconds with silent connections from outside the job (10,000 for each port) and fifty more a second
at each port that send something. The peers run only while the ranks leave a processor idle, as if
they were on a machine of their own.

First the ranks call nothing while the peers have just dialled: the ranks' processor time is the
cost of accepting and closing connections. Then the ranks reduce 1 MiB again and again, once all
peers have connected: until then these redial and need the processors themselves. The program prints
the ranks' processor time for a step and the steps a second, each alone, beset and their ratio, and
the medians of the ratios with their ranges. It ends with 0 only if peers take at most 5 % of a
processor from a rank that calls nothing, and if all of the range of a step's processor time is
within 1.05; with 1 if one of the two is beyond, and with 2 if the rounds are too few to tell.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

import shown
import unauthenticated_peers as peers
import wire_format
from launcher_jobs import Job
from linked_ranks import LinkedRanks

SECONDS = 5.0
SPEAKERS = 50  # a second
LEAVING_SECONDS = 10.0  # for the ranks to close the connections that still wait
MOST = 0.05  # the limit of the cost


def come(ports: list[peers.Address], crowd: int, all_in: bool, there: Event) -> None:
    """Connects to the ports until the process is killed."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    crowds = [peers.Crowd(port, crowd) for port in ports]
    dialled = sum(one.await_dialled() for one in crowds)
    came = sum(one.await_come() for one in crowds) if all_in else 0
    print(f"  {dialled} have dialled, {came} have come", file=sys.stderr)
    there.set()
    while True:
        for port in ports:
            peers.scan(port)
            peers.wrong_epoch(port, wire_format.DATA)
        time.sleep(1 / SPEAKERS)


def processor_seconds(job: LinkedRanks) -> float:
    """Processor time of the ranks so far, in user and in kernel mode."""
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


@contextlib.contextmanager
def beset(ports: list[peers.Address], crowd: int, all_in: bool) -> Iterator[None]:
    """Runs the body beside the peers, once all have dialled, or have all been accepted."""
    there = multiprocessing.Event()
    crowd_process = multiprocessing.Process(target=come, args=(ports, crowd, all_in, there))
    crowd_process.start()
    assert there.wait(2 * peers.COMING_SECONDS)
    try:
        yield
    finally:
        crowd_process.kill()
        crowd_process.join()
        time.sleep(LEAVING_SECONDS)


def share(job: LinkedRanks) -> float:
    """The share of a processor that a rank uses in the seconds from now on."""
    begun, used = time.monotonic(), processor_seconds(job)
    time.sleep(SECONDS)
    return (processor_seconds(job) - used) / (time.monotonic() - begun) / job.size


def main() -> int:
    """Measures both in turn; gives 1 if it is too much."""
    rounds, crowd = ([*map(int, sys.argv[1:]), *(5, 10_000)[len(sys.argv) - 1 :]])[:2]
    with tempfile.TemporaryDirectory() as folder:
        job = LinkedRanks(Job(), Path(folder), elements=1 << 18)
        for rank in range(2):
            job.start(rank)
        job.await_start()
        ports = [p for one in job.ranks.values() for p in peers.ports_of(one.process.pid)]
        job.enter("idle")
        idle = share(job)
        with beset(ports, crowd, all_in=False):
            taken = share(job) - idle
        print(f"of a processor the peers took {taken:.3f} from a rank", flush=True)
        job.resume()
        speeds, costs = [], []
        for _ in range(rounds):
            alone = pace(job)
            with beset(ports, crowd, all_in=True):
                visited = pace(job)
            speeds.append(visited[0] / alone[0])
            costs.append(visited[1] / alone[1])
            print(
                f"alone {alone[0]:.0f}, beset {visited[0]:.0f} steps a second: {speeds[-1]:.3f}; "
                f"{alone[1] * 1e3:.2f}, {visited[1] * 1e3:.2f} ms of processor: {costs[-1]:.3f}",
                flush=True,
            )
        job.end()
    code, words = shown.verdict(costs, 1 + MOST)
    least, most = shown.range_of_median(speeds)
    print(f"the processor time of a step is {words} times that without peers")
    print(f"the pace {statistics.median(speeds):.3f} ({least:.3f} to {most:.3f})")
    return shown.BROKEN if taken > MOST else code


if __name__ == "__main__":
    sys.exit(main())
