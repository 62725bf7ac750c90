"""Joins and leaves many times: python tests/faults/cycles.py [CYCLES [WAY...]]

Two ranks do so on each way on which a job can be held together, or on those that are named. Prints
how long a cycle took and what each rank holds more than before, and fails if it holds more
descriptors, threads or shared memory, or more memory or addresses than what comes and goes; where
MPI is used, which the process keeps, than so much for each cycle. (What the ranks of a host share
is as large as the machine's memory.)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from launcher_jobs import MODES, Job

# horoaccrun's flags and a rank's variables.
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "board": (MODES["tcp"], {}),
    "links": (MODES["tcp"], {"HOROACC_CONTROL": "tcp"}),
    "hosts": (MODES["tcp"], {"HOROACC_PARTED_HOSTS": "1+1"}),
    "openmpi": (MODES["openmpi"], {}),
    "openmpi-mpi": (MODES["openmpi"], {"HOROACC_CONTROL": "mpi"}),
    "mpich": (MODES["mpich"], {}),
    "mpich-mpi": (MODES["mpich"], {"HOROACC_CONTROL": "mpi"}),
}
# However many cycles; malloc may have room for a thread, or takes addresses for it.
KIB, ADDRESS_KIB = 1024, 256 << 10
# With MPI, an engine that has been shut down stays: the addresses are of the board that others may
# still look at, 26 MiB for each process set of two ranks.
MPI_KIB, MPI_ADDRESS_KIB = 40, 64 << 10
RANK = """
import os, sys, time
import numpy as np
import horoacc as hvd

def fewest_threads():
    # One that has been joined may still be on its way out of the kernel.
    looks = []
    for _ in range(50):
        looks.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return min(looks)

def held():
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:horoacc" in line for line in maps)
    with open("/proc/self/status") as status:
        kib = dict(line.split()[:2] for line in status if line.startswith(("VmRSS", "VmSize")))
    files = len(os.listdir("/proc/self/fd"))
    threads = fewest_threads()
    return files, threads, shared, kib["VmRSS:"], kib["VmSize:"]

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


def run(way: str, cycles: int) -> list[int]:
    """Fails if something is left over.

    Args:
        way: One of `WAYS`.
        cycles: How often the ranks join and leave.

    Returns:
        By how many KiB each rank has grown, in memory and then in addresses.
    """
    flags, variables = WAYS[way]
    mpi = flags != MODES["tcp"]
    most, most_addresses = (
        (MPI_KIB * cycles, MPI_ADDRESS_KIB * cycles) if mpi else (KIB, ADDRESS_KIB)
    )
    grown = []
    with Job() as job:
        result = job.run(
            *flags, "-np", "2", sys.executable, "-c", RANK, str(cycles),
            seconds=60 + cycles, **variables,
        )  # fmt: skip
        for rank in range(2):
            (line,) = result.of(rank)
            held = [*map(int, line.split())]
            (*before, resident, addresses), (*after, resident_now, addresses_now) = (
                held[:5], held[5:],
            )  # fmt: skip
            assert after == before, (way, line)
            grown += [resident_now - resident, addresses_now - addresses]
        job.expect_nothing_left()
    assert max(grown[::2]) < most and max(grown[1::2]) < most_addresses, (way, grown)
    return grown


def main() -> None:
    """Runs one way after the other."""
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for way in sys.argv[2:] or WAYS:
        begun = time.monotonic()
        grown = run(way, cycles)
        each = (time.monotonic() - begun) / cycles
        print(
            f"{way}: {cycles} cycles of {each * 1e3:.0f} ms, grown by {grown[::2]} KiB, "
            f"and by {grown[1::2]} KiB of addresses", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
