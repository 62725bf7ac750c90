"""Recognises the launcher of a process by the variables that it sets.

One function for each launcher: the placement, or None if another one started the process.
"""

from __future__ import annotations

from collections.abc import Mapping

from horoacc.launcher.environment.placement import (
    Bootstrap,
    Placement,
    PlacementError,
    by_host,
    count,
    number,
)
from horoacc.launcher.nodelist import counts

_KUBEFLOW = ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT")
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def horoaccrun(environ: Mapping[str, str]) -> Placement | None:
    """Recognises HOROACC_RANK and its companions, which horoaccrun sets without MPI."""
    if "HOROACC_RANK" not in environ:
        return None
    return _placement(
        "horoaccrun",
        "tcp",
        number(environ, "HOROACC_RANK"),
        number(environ, "HOROACC_SIZE"),
        number(environ, "HOROACC_LOCAL_RANK"),
        number(environ, "HOROACC_LOCAL_SIZE"),
        (number(environ, "HOROACC_CROSS_RANK", 0), number(environ, "HOROACC_CROSS_SIZE", 1)),
    )


def torchrun(environ: Mapping[str, str]) -> Placement | None:
    """Recognises torchrun by TORCHELASTIC_RUN_ID."""
    return torch_variables(environ) if "TORCHELASTIC_RUN_ID" in environ else None


def torch_variables(environ: Mapping[str, str]) -> Placement | None:
    """Recognises the variables of torch's env://, which any launcher may set."""
    if any(environ.get(name, "") == "" for name in _TORCH):
        return None
    rank, size = number(environ, "RANK"), count(environ, "WORLD_SIZE")
    local_size = count(environ, "LOCAL_WORLD_SIZE", size)
    local_rank = number(environ, "LOCAL_RANK", rank % local_size)
    group, groups = by_host(rank, size, local_rank, local_size)
    cross = number(environ, "GROUP_RANK", group), number(environ, "GROUP_WORLD_SIZE", groups)
    return _placement("torchrun", "tcp", rank, size, local_rank, local_size, cross)


def open_mpi(environ: Mapping[str, str]) -> Placement | None:
    """Recognises OMPI_COMM_WORLD_RANK and its companions."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    return _placement(
        "openmpi",
        "mpi",
        number(environ, "OMPI_COMM_WORLD_RANK"),
        count(environ, "OMPI_COMM_WORLD_SIZE"),
        number(environ, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        count(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", 1),
    )


def mpich(environ: Mapping[str, str]) -> Placement | None:
    """Recognises PMI_RANK and PMI_SIZE, which Hydra (MPICH's mpirun) and Intel MPI set."""
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    rank, size = number(environ, "PMI_RANK"), count(environ, "PMI_SIZE")
    alone = "MPI_LOCALNRANKS" not in environ  # srun --mpi=pmi2 says no more of the place
    if alone and (task := slurm(environ)) is not None:
        cross = task.cross_rank, task.cross_size
        return _placement("mpich", "mpi", rank, size, task.local_rank, task.local_size, cross)
    local_size = count(environ, "MPI_LOCALNRANKS", size)
    local_rank = number(environ, "MPI_LOCALRANKID", rank % local_size)
    return _placement("mpich", "mpi", rank, size, local_rank, local_size)


def kubernetes(environ: Mapping[str, str]) -> Placement | None:
    """Recognises a pod of an Indexed Job with one rank, whose manifest sets HOROACC_PODS."""
    if "JOB_COMPLETION_INDEX" not in environ or "HOROACC_PODS" not in environ:
        return None
    rank, size = number(environ, "JOB_COMPLETION_INDEX"), count(environ, "HOROACC_PODS")
    return _placement("kubernetes", "tcp", rank, size, 0, 1, (rank, size))


def kubeflow(environ: Mapping[str, str]) -> Placement | None:
    """Recognises a node of a Kubeflow TrainJob for torch that runs a script without torchrun."""
    if any(environ.get(f"PET_{name}", "") == "" for name in _KUBEFLOW):
        return None
    if environ.get("PET_NPROC_PER_NODE", "1") not in ("1", "auto", "cpu", "gpu"):
        raise PlacementError(
            f"PET_NPROC_PER_NODE is '{environ['PET_NPROC_PER_NODE']}': have the TrainJob start "
            "torchrun, which starts several ranks on a node"
        )
    rank, size = number(environ, "PET_NODE_RANK"), count(environ, "PET_NNODES")
    return _placement("kubeflow", "tcp", rank, size, 0, 1, (rank, size))


def slurm(environ: Mapping[str, str]) -> Placement | None:
    """Recognises a task of srun. Under `srun --mpi=pmix` the tasks meet through MPI, else over TCP.

    A batch script itself also has SLURM_PROCID and SLURM_NTASKS, but is alone; only srun sets
    SLURM_STEP_NUM_TASKS.
    """
    if "SLURM_PROCID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
        return None
    size, node = number(environ, "SLURM_STEP_NUM_TASKS"), number(environ, "SLURM_NODEID", 0)
    return _placement(
        "slurm",
        "mpi" if "PMIX_RANK" in environ else "tcp",
        number(environ, "SLURM_PROCID"),
        size,
        number(environ, "SLURM_LOCALID", 0),
        _tasks_here(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), node, size),
        (node, number(environ, "SLURM_STEP_NUM_NODES", 1)),
    )


def _tasks_here(text: str, node: int, default: int) -> int:
    """The number of tasks on a node, of SLURM_STEP_TASKS_PER_NODE; the default if it is not set."""
    try:
        tasks = counts(text) if text else []
    except ValueError as error:
        raise PlacementError(f"SLURM_STEP_TASKS_PER_NODE: {error}") from None
    return tasks[node] if 0 <= node < len(tasks) else default


def _placement(
    launcher: str,
    bootstrap: Bootstrap,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    cross: tuple[int, int] | None = None,
) -> Placement:
    """A placement; without `cross`, cross rank and size follow from the others."""
    cross_rank, cross_size = cross or by_host(rank, size, local_rank, local_size)
    needed: Bootstrap = "none" if size == 1 else bootstrap
    return Placement(rank, size, local_rank, local_size, cross_rank, cross_size, launcher, needed)
