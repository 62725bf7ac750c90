"""A rank that joins and leaves many times: python cycling_rank.py CYCLES [DOOR]

Prints what it holds after some first cycles, and what after CYCLES more: descriptors, threads,
shared memory of the core's, KiB of memory and of addresses.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import horoacc

# Where the arrays come from that a door takes.
ARRAYS = {"horoacc": "numpy", "horoacc.torch": "torch", "horoacc.tensorflow": "tensorflow"}
FIRST = 10  # one with a call in flight among them, whose error loads what it needs


def _fewest_threads() -> int:
    # One that has been joined may still be on its way out of the kernel.
    looks = []
    for _ in range(50):
        looks.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return min(looks)


def held() -> tuple[int, int, int, int, int]:
    """What this process holds, as the module says."""
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:horoacc" in line for line in maps)
    with open("/proc/self/status") as status:
        kib = dict(line.split()[:2] for line in status if line.startswith(("VmRSS", "VmSize")))
    files = len(os.listdir("/proc/self/fd"))
    return files, _fewest_threads(), shared, int(kib["VmRSS:"]), int(kib["VmSize:"])


def cycle(hvd: Any, ones: Callable[[int], Any], number: int) -> None:
    """Joins, reduces, and leaves; every tenth time somebody leaves what is in flight."""
    hvd.init()
    total = hvd.allreduce(ones(1000), op=hvd.Sum, name=f"x{number % 7}")
    assert float(total[999]) == hvd.size()
    if number % 10 == 9 and hvd.rank() == 0:
        horoacc.allreduce_async(np.ones(10), name="never")  # TensorFlow's door has none
    hvd.shutdown()


def holdings(door: str, cycles: int) -> tuple[int, ...]:
    """What the process holds before and after so many cycles, ten numbers."""
    hvd, ones = importlib.import_module(door), importlib.import_module(ARRAYS[door]).ones
    for number in range(FIRST):
        cycle(hvd, ones, number)
    before = held()
    for number in range(cycles):
        cycle(hvd, ones, number)
    return before + held()


if __name__ == "__main__":
    print(*holdings((*sys.argv, "horoacc")[2], int(sys.argv[1])), flush=True)
