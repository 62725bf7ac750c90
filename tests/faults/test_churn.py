"""Joining and leaving many times leaves nothing behind (row 26)."""

from __future__ import annotations

import sys

import pytest
from launcher_jobs import Job

CYCLES = """
import os, sys, threading
import numpy as np
import horoacc as hvd

def held():
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:horoacc" in line for line in maps)
    with open("/proc/self/status") as status:
        resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared, resident

def cycle(k):
    hvd.init()
    total = hvd.allreduce(np.ones(1000), op=hvd.Sum, name=f"x{k % 7}")
    assert (total == hvd.size()).all()
    if k % 10 == 9:  # somebody leaves what is in flight
        if hvd.rank() == 0:
            hvd.allreduce_async(np.ones(10), name="never")
    hvd.shutdown()

for k in range(5):
    cycle(k)
before = held()
for k in range(int(sys.argv[1])):
    cycle(k)
print(*before, *held(), flush=True)
"""


@pytest.mark.parametrize("variables", [{}, {"HOROACC_PARTED_HOSTS": "1+1"}])
def test_cycles_leak_nothing(variables: dict[str, str]) -> None:
    cycles = 40
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "2", sys.executable, "-c", CYCLES, str(cycles), **variables
        )
        for rank in range(2):
            (line,) = result.of(rank)
            fds, threads, shared, resident, fds_now, threads_now, shared_now, resident_now = map(
                int, line.split()
            )
            assert (fds_now, threads_now, shared_now) == (fds, threads, shared), line
            assert resident_now - resident < 40 * cycles, line  # KiB
        job.expect_nothing_left()
