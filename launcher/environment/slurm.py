"""A process that srun started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from horoacc.launcher.environment.placement import Placement, PlacementError, number

_RUN = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


class Slurm:
    """Recognises a task of a job step.

    A batch script itself also has SLURM_PROCID and SLURM_NTASKS, but is alone; only srun sets
    SLURM_STEP_NUM_TASKS. Its tasks meet through the MPI that srun prepared (`srun --mpi=pmix`).
    """

    @staticmethod
    def detect(environ: Mapping[str, str]) -> Placement | None:
        """The placement, or None if srun did not start this process."""
        if "SLURM_PROCID" not in environ or "SLURM_STEP_NUM_TASKS" not in environ:
            return None
        size = number(environ, "SLURM_STEP_NUM_TASKS")
        cross_rank = number(environ, "SLURM_NODEID", 0)
        return Placement(
            rank=number(environ, "SLURM_PROCID"),
            size=size,
            local_rank=number(environ, "SLURM_LOCALID", 0),
            local_size=_tasks_here(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), cross_rank, size),
            cross_rank=cross_rank,
            cross_size=number(environ, "SLURM_STEP_NUM_NODES", 1),
            launcher="slurm",
            bootstrap="none" if size == 1 else "mpi",
        )


def _tasks_here(text: str, node: int, default: int) -> int:
    """Reads Slurm's run-length form: `2(x3),1` is 2, 2, 2 and 1 tasks on four nodes."""
    nodes = 0
    for part in filter(None, text.split(",")):
        if not (run := _RUN.fullmatch(part)):
            raise PlacementError(f"SLURM_STEP_TASKS_PER_NODE is '{text}', such as '2(x3),1'")
        nodes += int(run[2] or 1)
        if node < nodes:
            return int(run[1])
    return default
