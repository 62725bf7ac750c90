"""Flags of horovodrun, and variables of Horovod, that have no meaning here."""

from __future__ import annotations

from collections.abc import Mapping

from horoacc.settings.parse import renamed
from horoacc.settings.setting import Retired, RetiredVariable
from horoacc.settings.table import TABLE

_TOPOLOGY = "the algorithm follows the topology"
_TUNING = "trials are judged by intervals, and not by a Gaussian process"
_SSH = (
    "mpirun reaches other hosts by itself: give Open MPI's `--mca plm_ssh_args` in --mpi-args, or "
    "a program of your own in --launch-agent"
)
_NO_GPU = "tensors are reduced in the host's memory"
_MEETING = "ranks learn from horoaccrun where they meet, or from HOROACC_RENDEZVOUS"
_TURNS = "threads of a rank take turns in calling MPI, which needs MPI_THREAD_SERIALIZED at least"

RETIRED: tuple[Retired, ...] = (
    Retired(
        "--cycle-time-ms", "the engine wakes on submission instead of on a cycle", 1,
        env="HOROVOD_CYCLE_TIME",
    ),
    Retired(
        "--cache-capacity", "the agreed table has no capacity", 1, env="HOROVOD_CACHE_CAPACITY"
    ),
    Retired("--hierarchical-allreduce", _TOPOLOGY, env="HOROVOD_HIERARCHICAL_ALLREDUCE"),
    Retired("--hierarchical-allgather", _TOPOLOGY, env="HOROVOD_HIERARCHICAL_ALLGATHER"),
    Retired("--torus-allreduce", _TOPOLOGY, env="HOROVOD_TORUS_ALLREDUCE"),
    Retired(
        "--autotune-gaussian-process-noise", _TUNING, 1,
        env="HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
    ),
    Retired("--mpi-threads-disable", _TURNS, env="HOROVOD_MPI_THREADS_DISABLE"),
    Retired("--num-nccl-streams", "NCCL works on one stream", 1, env="HOROVOD_NUM_NCCL_STREAMS"),
    Retired(
        "--gloo-timeout-seconds", "Gloo is not used; see --start-timeout", 1,
        env="HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    Retired("--disable-cache", "the launcher caches nothing"),
    Retired("--ssh-port", _SSH, 1, ("-p",)),
    Retired("--ssh-identity-file", _SSH, 1, ("-i",)),
    Retired("--binding-args", "ranks are not bound; give mpirun's own flags in --mpi-args", 1),
    Retired(
        "--jsrun", "jsrun is not used; start the job with an mpirun or srun of its own",
        refused=True,
    ),
)  # fmt: skip

RETIRED_VARIABLES: tuple[RetiredVariable, ...] = (
    RetiredVariable(
        "HOROVOD_CPU_OPERATIONS",
        "one engine carries all collectives; HOROVOD_CONTROLLER says whether mpirun starts ranks",
    ),
    RetiredVariable("HOROVOD_DYNAMIC_PROCESS_SETS", "process sets can always be added and removed"),
    RetiredVariable(
        "HOROVOD_DISABLE_GROUP_FUSION",
        "with HOROACC_REDUCTION=canonical no bit depends on it",
    ),
    RetiredVariable("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "Adasum is not cut into chunks"),
    RetiredVariable("HOROVOD_BATCH_D2D_MEMCOPIES", _NO_GPU),
    RetiredVariable("HOROVOD_DISABLE_NVTX_RANGES", _NO_GPU),
    RetiredVariable("HOROVOD_ENABLE_ASYNC_COMPLETION", _NO_GPU),
    RetiredVariable(
        "HOROVOD_ENABLE_XLA_OPS", "XLA cannot run the collectives; see docs/tensorflow.md"
    ),
    RetiredVariable("HOROVOD_CCL_CACHE", "oneCCL is not used"),
    RetiredVariable("HOROVOD_GLOO_RENDEZVOUS_ADDR", _MEETING),
    RetiredVariable("HOROVOD_GLOO_RENDEZVOUS_PORT", _MEETING),
    RetiredVariable("HOROVOD_SECRET_KEY", "horoaccrun makes a secret for each job"),
    RetiredVariable("HOROVOD_ELASTIC", "a job is elastic with --min-np or a discovery script"),
    RetiredVariable("HOROVOD_SPARK_START_TIMEOUT", "jobs are not started from Spark"),
    RetiredVariable("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "jobs are not started from Spark"),
    RetiredVariable("HOROVOD_SPARK_PYTHONPATH", "jobs are not started from Spark"),
    RetiredVariable("HOROVOD_SPARK_WORK_DIR", "jobs are not started from Spark"),
)
"""Variables without a flag."""


def notices(environ: Mapping[str, str]) -> list[str]:
    """Tells of variables that do nothing, or have another name now.

    Args:
        environ: The variables; an empty one counts as not set, and of those that do nothing also a
            switch that is off.

    Returns:
        A line for each.
    """
    unused = {row.env: row.why for row in RETIRED if row.env}
    unused |= {row.env: row.why for row in RETIRED_VARIABLES}
    lines = [
        f"{name} has no effect: {why}"
        for name, why in unused.items()
        if environ.get(name, "") not in ("", "0")
    ]
    for row in TABLE:
        for name in (row.env, row.former_env):
            if name and (text := environ.get(name)):
                lines += renamed(row, name, row.env, text)
    return lines
