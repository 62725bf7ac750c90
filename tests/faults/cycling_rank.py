"""A rank that joins and leaves many times: python cycling_rank.py CYCLES [FRONTEND]

Prints its descriptors, threads, mappings of the core's shared memory, KiB of memory and KiB of
addresses, after some first cycles and after CYCLES more.
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

# The package of the arrays that a frontend takes.
ARRAYS = {"horoacc": "numpy", "horoacc.torch": "torch", "horoacc.tensorflow": "tensorflow"}
FIRST = 10  # one of them with a call in flight, whose error loads modules


def _fewest_threads() -> int:
    # A thread that was joined may still be in the kernel.
    looks = []
    for _ in range(50):
        looks.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return min(looks)


def held() -> tuple[int, int, int, int, int]:
    """The five numbers of the module's docstring."""
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:horoacc" in line for line in maps)
    with open("/proc/self/status") as status:
        kib = dict(line.split()[:2] for line in status if line.startswith(("VmRSS", "VmSize")))
    files = len(os.listdir("/proc/self/fd"))
    return files, _fewest_threads(), shared, int(kib["VmRSS:"]), int(kib["VmSize:"])


def cycle(hvd: Any, ones: Callable[[int], Any], number: int) -> None:
    """Joins, reduces, and leaves; every tenth time rank 0 leaves with a call in flight."""
    hvd.init()
    total = hvd.allreduce(ones(1000), op=hvd.Sum, name=f"x{number % 7}")
    assert float(total[999]) == hvd.size()
    if number % 10 == 9 and hvd.rank() == 0:
        horoacc.allreduce_async(np.ones(10), name="never")  # the TensorFlow frontend has none
    hvd.shutdown()


def holdings(frontend: str, cycles: int) -> tuple[int, ...]:
    """`held` before and after so many cycles, ten numbers."""
    hvd, ones = importlib.import_module(frontend), importlib.import_module(ARRAYS[frontend]).ones
    for number in range(FIRST):
        cycle(hvd, ones, number)
    before = held()
    for number in range(cycles):
        cycle(hvd, ones, number)
    return before + held()


if __name__ == "__main__":
    print(*holdings((*sys.argv, "horoacc")[2], int(sys.argv[1])), flush=True)
