"""A process set inside a host of a job on two hosts, against that set in a job on one host.

Two hosts of the network laboratory, two ranks each. The two ranks of h1 reduce, and send messages
to each other and back, while those of h2 wait; and again while those of h2 do the same, against a
job on one host beside another such job. Jobs alternate; a figure is the median of the rounds'
medians of the slower rank's times, and a comparison the median of the rounds' ratios: the machine's
memory is several times as fast in one minute as in another.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MIB, MPIRUN
from benchmarks.records import Records
from benchmarks.systems import environ

WORK: dict[str, tuple[str, int, int]] = {
    "allreduce of 1 KiB": ("allreduce", 1 << 10, 4000),
    "allreduce of 1 MiB": ("allreduce", MIB, 200),
    "allreduce of 64 MiB": ("allreduce", 64 * MIB, 10),
    "message of 64 B": ("message", 64, 2000),
    "message of 16 MiB": ("message", 16 * MIB, 10),
}
ROUNDS = 7
MOST = 1.10
_SECONDS = 150

_PROGRAM = """
import json, sys, time
import torch
import torch.distributed as dist
import horoacc.torch
work, busy = json.loads(sys.argv[1])
dist.init_process_group("horoacc")
rank = dist.get_rank()
pairs = [dist.new_group([r, r + 1]) for r in range(0, dist.get_world_size(), 2)]
pair, peer = pairs[rank // 2], rank ^ 1
def allreduce(tensor):
    dist.all_reduce(tensor, group=pair)
def message(tensor):
    for sends in (rank < peer, rank > peer):
        (dist.send if sends else dist.recv)(tensor, peer, group=pair)
told = {}
for name, (call, size, turns) in work.items():
    tensor = torch.zeros(size // 4)
    dist.barrier()
    if rank > 1 and not busy:
        continue
    seconds = []
    for turn in range(turns + 5):
        dist.barrier(group=pair)
        began = time.perf_counter()
        globals()[call](tensor)
        seconds.append(time.perf_counter() - began)
    both = [None, None]
    dist.all_gather_object(both, seconds[5:], group=pair)
    slower = sorted(map(max, *both))
    told[name] = slower[len(slower) // 2]
dist.barrier()
if rank == 0:
    print(json.dumps(told), flush=True)
dist.destroy_process_group()
"""
# System, hosts of the job, how many such jobs side by side, whether h2's ranks work.
_JOBS = (
    ("two hosts", "h1:2,h2:2", 1, False),
    ("one host", "h1:2", 1, False),
    ("two hosts, busy", "h1:2,h2:2", 1, True),
    ("one host, busy", "h1:2", 2, True),
)


def run(records: Records, quick: bool) -> None:
    """Measures both kinds of jobs, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    work = {name: (call, size, 3 if quick else turns) for name, (call, size, turns) in WORK.items()}
    rounds: list[dict[str, dict[str, float]]] = []
    with Laboratory(Network()) as lab:
        for _ in range(1 if quick else ROUNDS):
            rounds.append({})
            for system, hosts, jobs, busy in _JOBS:
                try:
                    rounds[-1][system] = _figures(lab, hosts, jobs, [work, busy])
                except (subprocess.SubprocessError, ValueError) as error:
                    records.report_failure(system, 2, str(error))
    whole = [times for times in rounds if len(times) == len(_JOBS)]
    for busy in ("", ", busy"):
        for name in work if whole else ():
            pairs = [
                (times[f"two hosts{busy}"][name], times[f"one host{busy}"][name])
                for times in whole
            ]  # fmt: skip
            two, one = (statistics.median(pair[k] for pair in pairs) for k in (0, 1))
            for system, seconds in (("two hosts", two), ("one host", one)):
                records.write({"system": system + busy, "call": name, "time": seconds})
            print(f"{name + busy:<28}{two * 1e6:>12.1f} us{one * 1e6:>12.1f} us on one host")
            what = f"{name} inside a host of two{busy}: time over that in a job on one host"
            ratio = statistics.median(two / one for two, one in pairs)
            records.target(what, ratio, MOST, "x", at_most=True)


def _figures(lab: Laboratory, hosts: str, jobs: int, told: list[Any]) -> dict[str, float]:
    # A job on one host runs on h1, and the one beside it on h2.
    places = [hosts.replace("h1", f"h{job + 1}") if jobs > 1 else hosts for job in range(jobs)]
    running = [
        lab.hosts[place[:2]].popen(
            [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "--mpirun", str(MPIRUN),
             "-H", place, sys.executable, "-c", _PROGRAM, json.dumps(told)],
            env=environ(), stdout=subprocess.PIPE, text=True,
        )
        for place in places
    ]  # fmt: skip
    outputs = [job.communicate(timeout=_SECONDS)[0] for job in running]
    found = [
        json.loads(line[line.index("{") :])
        for output in outputs
        for line in output.splitlines()
        if "{" in line
    ]
    if len(found) != jobs or any(job.returncode for job in running):
        raise ValueError(f"{len(found)} of {jobs} jobs on {hosts} told their times")
    return dict(found[0])
