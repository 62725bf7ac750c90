"""Allreduce between two hosts of the network laboratory, against Gloo and Open MPI.

Two hosts of two ranks each, joined by a link of 1 Gbit/s. What an algorithm must send over it is
known (2S(H-1)/H = S for each host), so the time says which share of the link was payload. All
systems are started by the same mpirun through the laboratory's agent, in turns; a figure is the
median of the turns' medians. Open MPI runs with its defaults and with those settings that were
quickest here of the ones tried; the best of all peers counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.lab import Laboratory, Network, missing
from benchmarks.records import Records
from benchmarks.systems import environ

RATE = 1e9
RANKS = 4
SIZES = {64 << 20: 2, 1 << 20: 10, 4 << 10: 100}
ROUNDS = 3
QUICK = {1 << 20: 3}
MPIRUN = Path(sys.executable).parent / "mpirun"
_SECONDS = 150

_TIMES = """
import json, sys, time
import numpy as np
def measure(rank, allreduce, barrier):
    for size, turns in json.loads(sys.argv[1]).items():
        array = np.zeros(int(size) // 4, np.float32)
        seconds, wrong = [], 0
        for turn in range(int(turns) + 1):
            array[:] = rank + turn
            barrier()
            began = time.perf_counter()
            array = allreduce(array)
            if turn > 0:
                seconds.append(time.perf_counter() - began)
            wrong += int((array != 6 + 4 * turn).sum())
        seconds.sort()
        if rank == 0:
            print(json.dumps({"size": int(size), "time": seconds[len(seconds) // 2],
                              "min": seconds[0], "max": seconds[-1], "wrong": wrong}), flush=True)
"""
_OURS = """
import horoacc as hvd
hvd.init()
measure(hvd.rank(), lambda x: hvd.allreduce_(x, name=str(x.size), op=hvd.Sum), hvd.barrier)
hvd.shutdown()
"""
_GLOO = """
import os, torch, torch.distributed as dist
rank = int(os.environ["HOROACC_RANK"])
dist.init_process_group("gloo", init_method="tcp://h1:29511", rank=rank, world_size=4)
def allreduce(x):
    dist.all_reduce(torch.from_numpy(x))
    return x
measure(rank, allreduce, dist.barrier)
dist.destroy_process_group()
"""
_OPENMPI = """
from mpi4py import MPI
def allreduce(x):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
    return x
measure(MPI.COMM_WORLD.Get_rank(), allreduce, MPI.COMM_WORLD.Barrier)
"""
_MPI = {"MPI4PY_MPIABI": "openmpi"}
_RING = {
    "OMPI_MCA_coll": "^han", "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
}  # fmt: skip
_HAN = {"OMPI_MCA_coll_han_priority": "100", "OMPI_MCA_coll_han_allreduce_segsize": "524288"}
SYSTEMS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "horoacc": (_OURS, ["--tcp"], {}),
    "horoacc hierarchical": (_OURS, ["--tcp", "--algorithm", "hierarchical"], {}),
    "gloo": (_GLOO, ["--tcp"], {"GLOO_SOCKET_IFNAME": "eth0"}),
    "openmpi": (_OPENMPI, ["--mpi"], _MPI),
    "openmpi ring": (_OPENMPI, ["--mpi"], _MPI | _RING),
    "openmpi han": (_OPENMPI, ["--mpi"], _MPI | _HAN),
}
Figures = dict[str, Any]


def run(records: Records, quick: bool) -> None:
    """Measures every system, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    sizes = QUICK if quick else SIZES
    rounds: dict[tuple[str, int], list[Figures]] = {}
    with Laboratory(Network(rate=RATE)) as lab:
        for _ in range(1 if quick else ROUNDS):
            for system, (program, flags, variables) in SYSTEMS.items():
                try:
                    measured = _figures(lab, program, flags, variables, sizes)
                except subprocess.SubprocessError as error:
                    records.report_failure(system, RANKS, str(error))
                    continue
                for figures in measured:
                    rounds.setdefault((system, figures["size"]), []).append(figures)
    times = {
        (system, size): _write(records, system, size, figures)
        for (system, size), figures in rounds.items()
    }
    _compare(records, times)


def _write(records: Records, system: str, size: int, rounds: list[Figures]) -> float:
    """One line; the median of the rounds."""
    seconds = statistics.median(figures["time"] for figures in rounds)
    wrong = sum(figures["wrong"] for figures in rounds)
    share = size * 8 / seconds / RATE
    _, flags, variables = SYSTEMS[system]
    settings = [f"{name}={value}" for name, value in variables.items()]
    shown = " ".join([*settings, "horoaccrun", *flags, "-np", "4", "-H", "h1:2,h2:2"])
    records.write(
        {"system": system, "version": _version(system), "flags": shown, "ranks": RANKS, "hosts": 2,
         "rate": RATE, "size": size, "time": seconds, "min": min(f["min"] for f in rounds),
         "max": max(f["max"] for f in rounds), "wrong": wrong, "share_of_link": round(share, 4)}
    )  # fmt: skip
    line = f"{system:<24}{size:>12}{seconds * 1e3:>12.3f} ms{share:>8.1%} of the link"
    print(f"{line}{wrong:>6} wrong", flush=True)
    if wrong:
        records.report_failure(system, RANKS, f"{wrong} elements of {size} bytes are wrong")
    return seconds


def _compare(records: Records, times: dict[tuple[str, int], float]) -> None:
    for size in sorted({size for _, size in times}, reverse=True):
        peers = [
            seconds for (system, of), seconds in times.items()
            if of == size and not system.startswith("horoacc")
        ]  # fmt: skip
        own = times.get(("horoacc", size))
        if own is None or not peers:
            continue
        shown = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        if size == 64 << 20:
            what = "64 MiB between two hosts: share of the link that is payload"
            records.target(what, size * 8 / own / RATE, 0.95, "", at_most=False)
        what = f"{shown} between two hosts: the best peer's time over HoroACC's"
        records.target(what, min(peers) / own, 1, "x", at_most=False)


def _figures(
    lab: Laboratory, program: str, flags: list[str], variables: dict[str, str],
    sizes: dict[int, int],
) -> list[Figures]:  # fmt: skip
    done = lab.hosts["h1"].run(
        [sys.executable, "-m", "horoacc.launcher.main", *flags, "--mpirun", str(MPIRUN),
         "-np", str(RANKS), "-H", "h1:2,h2:2", sys.executable, "-c", _TIMES + program,
         json.dumps(sizes)],
        env=environ() | variables, stdout=subprocess.PIPE, text=True, check=True,
        timeout=_SECONDS,
    )  # fmt: skip
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _version(system: str) -> str:
    package = {"gloo": "torch", "openmpi": "openmpi"}.get(system.split()[0], "horoacc")
    return f"{package} {metadata.version(package)}"
