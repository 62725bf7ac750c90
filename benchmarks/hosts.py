"""Allreduce between two hosts of the network laboratory, against Gloo and Open MPI.

Two hosts of two ranks each, joined by a link of 1 Gbit/s. What an algorithm must send over it is
known (2S(H-1)/H = S for each host), so the time says which share of the link was payload. All
systems are started by the same mpirun through the laboratory's agent, one after the other.
"""

from __future__ import annotations

import json
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
SIZES = {64 << 20: 5, 1 << 20: 20, 4 << 10: 200}
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
SYSTEMS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "horoacc": (_OURS, ["--tcp"], {}),
    "horoacc hierarchical": (_OURS, ["--tcp", "--algorithm", "hierarchical"], {}),
    "gloo": (_GLOO, ["--tcp"], {"GLOO_SOCKET_IFNAME": "eth0"}),
    "openmpi": (_OPENMPI, ["--mpi"], {"MPI4PY_MPIABI": "openmpi"}),
}


def run(records: Records, quick: bool) -> None:
    """Measures every system, or writes why that is not possible here."""
    if reason := missing():
        records.write({"skipped": reason})
        print(f"skipped: {reason}")
        return
    sizes = QUICK if quick else SIZES
    with Laboratory(Network(rate=RATE)) as lab:
        for system, (program, flags, variables) in SYSTEMS.items():
            try:
                measured = _figures(lab, program, flags, variables, sizes)
            except subprocess.SubprocessError as error:
                records.complain(system, RANKS, str(error))
                continue
            for figures in measured:
                share = figures["size"] * 8 / figures["time"] / RATE
                shown = " ".join(["horoaccrun", *flags, "-np", "4", "-H", "h1:2,h2:2"])
                records.write(
                    {"system": system, "version": _version(system), "flags": shown, "ranks": RANKS,
                     "hosts": 2, "rate": RATE, **figures, "share_of_link": round(share, 4)}
                )  # fmt: skip
                line = f"{system:<24}{figures['size']:>12}{figures['time'] * 1e3:>12.3f} ms"
                print(f"{line}{share:>8.1%} of the link{figures['wrong']:>6} wrong")
                if system == "horoacc" and figures["size"] == 64 << 20:
                    what = "64 MiB between two hosts: share of the link that is payload"
                    records.target(what, share, 0.95, "", at_most=False)


def _figures(
    lab: Laboratory, program: str, flags: list[str], variables: dict[str, str],
    sizes: dict[int, int],
) -> list[dict[str, Any]]:  # fmt: skip
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
    package = {"gloo": "torch", "openmpi": "openmpi"}.get(system, "horoacc")
    return f"{package} {metadata.version(package)}"
