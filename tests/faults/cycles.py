"""Joins and leaves many times: python tests/faults/cycles.py [CYCLES [WAY...]]

Two ranks do so over each transport, or over those that are named. Prints the time of a cycle and
the growth of each rank, and fails if a rank has more descriptors, threads or shared memory than
before, or if its memory or addresses grew beyond a limit; where the process keeps engines, for MPI,
the limit is per cycle. (The shared memory of a host's ranks is as large as the machine's.)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from launcher_jobs import MODES, Job

OVER_MPI = {"HOROACC_SIMULATED_HOSTS": "each", "HOROACC_CONTROL": "mpi"}
# horoaccrun's flags and a rank's variables.
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "shm": (MODES["tcp"], {}),
    "torch": (MODES["tcp"], {}),
    "torch-hosts": (MODES["tcp"], {"HOROACC_SIMULATED_HOSTS": "1+1"}),
    "tensorflow": (MODES["tcp"], {}),
    "hosts": (MODES["tcp"], {"HOROACC_SIMULATED_HOSTS": "1+1"}),
    "openmpi": (MODES["openmpi"], {}),
    "openmpi-mpi": (MODES["openmpi"], OVER_MPI),
    "mpich": (MODES["mpich"], {}),
    "mpich-mpi": (MODES["mpich"], OVER_MPI),
}
# For any number of cycles; malloc may have room for a thread, or takes addresses for it.
KIB, ADDRESS_KIB = 1024, 256 << 10
# An engine that uses MPI stays after its shutdown: the addresses are of control segments, which
# other ranks may still read: 26 MiB for a process set of two ranks of one host.
KEPT_KIB, KEPT_ADDRESS_KIB = 40, 64 << 10
RANK = str(Path(__file__).with_name("cycling_rank.py"))


def grown(held: Sequence[int], cycles: int, kept: bool) -> tuple[int, int]:
    """Fails if a rank holds more than it may.

    Args:
        held: The result of `cycling_rank.holdings`.
        cycles: How often it has joined and left between.
        kept: Whether its process keeps the engines.

    Returns:
        By how many KiB it has grown, in memory and in addresses.
    """
    (*before, resident, addresses), (*after, resident_now, addresses_now) = held[:5], held[5:]
    assert after == before, held
    memory, room = resident_now - resident, addresses_now - addresses
    most = (KEPT_KIB * cycles + KIB, KEPT_ADDRESS_KIB * cycles) if kept else (KIB, ADDRESS_KIB)
    assert memory < most[0] and room < most[1], (memory, room, held)
    return memory, room


def run(way: str, cycles: int, ranks: int = 2) -> list[tuple[int, int]]:
    """Fails if something is left over.

    Args:
        way: One of `WAYS`.
        cycles: How often the ranks join and leave.
        ranks: How many there are.

    Returns:
        By how many KiB each rank has grown, in memory and in addresses.
    """
    flags, variables = WAYS[way]
    framework = way.partition("-")[0]
    frontend = f"horoacc.{framework}" if framework in ("torch", "tensorflow") else "horoacc"
    with Job() as job:
        result = job.run(
            *flags, "-np", str(ranks), sys.executable, RANK, str(cycles), frontend,
            seconds=60 + cycles, **variables,
        )  # fmt: skip
        told = []
        for rank in range(ranks):
            (line,) = result.of(rank)
            kept = flags != MODES["tcp"]
            told.append(grown([*map(int, line.split())], cycles, kept))
        job.expect_nothing_left()
    return told


def main() -> None:
    """Runs one way after the other."""
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for way in sys.argv[2:] or WAYS:
        begun = time.monotonic()
        told = run(way, cycles)
        each = (time.monotonic() - begun) / cycles
        print(
            f"{way}: {cycles} cycles of {each * 1e3:.0f} ms, ranks grown by KiB of memory and of "
            f"addresses: {told}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
