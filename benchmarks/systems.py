"""The systems that are measured: how each starts its ranks, with its best settings on one host.

Every system gets one thread a rank. What was tried for the peers and did not help is in README.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from benchmarks.machine import cores

ROOT = Path(__file__).resolve().parents[1]
MPICH = ROOT / ".mpich"

# What a launcher around the benchmarks left; ranks must not take themselves for that job's.
_FOREIGN = re.compile(
    r"OMPI_|PMIX_|PMI_|PRTE_|HYDI_|MPI_LOCAL|MPI4PY_|MPIR_CVAR_|HOROACC_|HOROVOD_|RANK$"
    r"|LOCAL_RANK$|WORLD_SIZE$|MASTER_ADDR$|MASTER_PORT$|GLOO_|SLURM_"
)


@dataclass(frozen=True)
class Process:
    """One process to start."""

    command: list[str]
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """What starts the ranks of a system, and what the records say about it."""

    processes: list[Process]
    version: str
    flags: str
    transport: str
    binding: str


class Unavailable(RuntimeError):
    """A system is not installed here."""


@dataclass(frozen=True)
class Request:
    """What is to be started."""

    ranks: int
    program: list[str]
    folder: Path
    """Where files that the ranks need may be; it goes away afterwards."""
    arena: str
    """HOROACC_ARENA."""
    tcp: bool = True
    """Start HoroACC's ranks without MPI."""
    bound: bool = True
    """Give each rank a core of its own, if there are enough."""

    @property
    def binding(self) -> str:
        """What a rank is bound to."""
        return "core" if self.bound and self.ranks <= cores() else "none"


def launch(system: str, request: Request) -> Launch:
    """Says how to start a system's ranks.

    Args:
        system: horoacc, horoacc over mpi, gloo, openmpi, mpich, or bound (this machine itself, one
            process).
        request: What is to be started.

    Raises:
        Unavailable: The system is not installed.
    """
    if system == "horoacc over mpi":
        return _horoacc(replace(request, tcp=False))
    return _SYSTEMS[system](request)


def environ() -> dict[str, str]:
    """The variables of every rank: one thread each, and nothing of a launcher around us."""
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return kept | threads | {"PYTHONPATH": path}


def _horoacc(request: Request) -> Launch:
    launcher = Path(sys.executable).parent / "horoaccrun"
    if not launcher.exists():
        raise Unavailable(f"there is no {launcher.name} beside this Python: install horoacc")
    plane = ["--tcp"] if request.tcp else []
    flags = [*plane, "-np", str(request.ranks)]
    # Under mpirun only `idle` is measured, where it does not matter.
    request = replace(request, bound=request.bound and request.tcp)
    variables = {"HOROACC_ARENA": request.arena} | _own_core(request)
    process = Process([str(launcher), *flags, *request.program], variables)
    shown = " ".join(["horoaccrun", *flags, f"HOROACC_ARENA={request.arena}"])
    return Launch([process], metadata.version("horoacc"), shown, "shared memory", request.binding)


def _gloo(request: Request) -> Launch:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise Unavailable("torch is not installed") from None
    shared = _own_core(request) | {
        "GLOO_SOCKET_IFNAME": "lo", "BENCH_SIZE": str(request.ranks)
    }  # fmt: skip
    shared["BENCH_MEETING"] = str(request.folder / "gloo")
    processes = [
        Process(request.program, shared | {"BENCH_RANK": str(rank)})
        for rank in range(request.ranks)
    ]
    flags = "GLOO_SOCKET_IFNAME=lo"
    return Launch(processes, f"torch {version}", flags, "TCP over lo", request.binding)


def _openmpi(request: Request) -> Launch:
    mpirun = Path(sys.executable).parent / "mpirun"
    version = _version(mpirun, r"\(Open MPI\)\s+(\S+)")
    flags = ["-np", str(request.ranks), "--bind-to", request.binding]
    if request.ranks > cores():
        # A rank that polls must give its core to one that has work.
        flags += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    shown = "mpirun " + " ".join(flags)
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    process = Process([str(mpirun), *flags, *request.program], {"MPI4PY_MPIABI": "openmpi"})
    return Launch([process], version, shown, "ob1 over sm, single copy by CMA", request.binding)


def _mpich(request: Request) -> Launch:
    mpirun = MPICH / "bin" / "mpirun"
    version = _version(mpirun, r"Version:\s+(\S+)")
    flags = ["-np", str(request.ranks), "-bind-to", request.binding]
    if request.ranks <= cores():
        variables = {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}
    else:
        # Its ranks spin. Only this lets them sleep now and then; yielding alone does not help.
        variables = {
            "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
            "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "64",
        }
    shown = " ".join(["mpirun", *flags, *(f"{k}={v}" for k, v in variables.items())])
    variables |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(MPICH / "lib")}
    process = Process([str(mpirun), *flags, *request.program], variables)
    return Launch([process], version, shown, "ch4 posix shared memory", request.binding)


def _bound(request: Request) -> Launch:
    threads = f"{cores()} threads in one process"
    return Launch([Process(request.program)], "-", threads, "memory", "core")


def _own_core(request: Request) -> dict[str, str]:
    """The variable that binds the ranks of those that have no launcher that does."""
    return {"BENCH_BIND": "1"} if request.binding == "core" else {}


def _version(program: Path, pattern: str) -> str:
    if not program.exists():
        raise Unavailable(f"{program} does not exist")
    shown = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    found = re.search(pattern, shown)
    if found is None:
        raise Unavailable(f"{program.name} is not the one that was expected: {shown[:200]}")
    return found[1]


_SYSTEMS: dict[str, Callable[[Request], Launch]] = {
    "horoacc": _horoacc,
    "gloo": _gloo,
    "openmpi": _openmpi,
    "mpich": _mpich,
    "bound": _bound,
}
