"""The one table of settings, and the flags of horovodrun that it has no row for."""

from __future__ import annotations

from horoacc.settings.core_rows import CORE_ROWS
from horoacc.settings.python_rows import PYTHON_ROWS
from horoacc.settings.setting import BuildVariable, Retired, Setting

TABLE: tuple[Setting, ...] = (*CORE_ROWS, *PYTHON_ROWS)

# Read by setup.py, which cannot import this package, and by horoacc/ops_build.py.
BUILD: tuple[BuildVariable, ...] = (
    BuildVariable(
        "HOROACC_BUILD_TYPE", "Release", "CMake's build type when the package is installed."
    ),
    BuildVariable("HOROACC_TESTS", "OFF", "`ON` also configures the C++ tests."),
    BuildVariable(
        "HOROACC_OPENMPI_PREFIX",
        "",
        "Where `include/mpi.h` and `lib/` of the Open MPI for its plug-in lie; empty: the "
        "interpreter's prefix, `.openmpi` beside setup.py, or that of the `mpicc` on PATH.",
    ),
    BuildVariable("HOROACC_MPICH_PREFIX", "", "The same for MPICH, with `.mpich`."),
    BuildVariable(
        "HOROACC_MPI_FETCH",
        "1",
        "`0`: an MPI whose headers are not found is not fetched from the package index, and its "
        "plug-in is left out.",
    ),
    BuildVariable(
        "HOROACC_OPS_PREBUILD",
        "",
        "`0`: an installation does not compile the framework ops, which the first use then does. "
        "`1`: ops go into the package instead of the cache, as an installation wants them.",
    ),
)

_TOPOLOGY = "the algorithm follows the topology"
_TUNING = "there is nothing to tune at run time"
_ELASTIC = "elastic jobs are not possible yet; give a fixed number of ranks with -np"
_SSH = "mpirun reaches other hosts by itself: give Open MPI's `--mca plm_ssh_args` in --mpi-args"
_NETWORK = "ranks of a host need no network; for mpirun's own, use --mpi-args"
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
    Retired("--autotune", _TUNING, env="HOROVOD_AUTOTUNE"),
    Retired("--autotune-log-file", _TUNING, 1, env="HOROVOD_AUTOTUNE_LOG"),
    Retired("--autotune-warmup-samples", _TUNING, 1),
    Retired("--autotune-steps-per-sample", _TUNING, 1),
    Retired("--autotune-bayes-opt-max-samples", _TUNING, 1),
    Retired("--autotune-gaussian-process-noise", _TUNING, 1),
    Retired("--mpi-threads-disable", _TURNS, env="HOROVOD_MPI_THREADS_DISABLE"),
    Retired("--num-nccl-streams", "NCCL is not used", 1, env="HOROVOD_NUM_NCCL_STREAMS"),
    Retired(
        "--gloo-timeout-seconds", "Gloo is not used; see --start-timeout", 1,
        env="HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    Retired("--disable-cache", "the launcher caches nothing"),
    Retired("--ssh-port", _SSH, 1, ("-p",)),
    Retired("--ssh-identity-file", _SSH, 1, ("-i",)),
    Retired("--network-interfaces", _NETWORK, 1, ("--network-interface",)),
    Retired("--binding-args", "ranks are not bound; give mpirun's own flags in --mpi-args", 1),
    Retired("--min-np", _ELASTIC, 1, ("--min-num-proc",), refused=True),
    Retired("--max-np", _ELASTIC, 1, ("--max-num-proc",), refused=True),
    Retired("--host-discovery-script", _ELASTIC, 1, refused=True),
    Retired("--slots-per-host", _ELASTIC, 1, ("--slots",), refused=True),
    Retired("--elastic-timeout", _ELASTIC, 1, refused=True),
    Retired("--reset-limit", _ELASTIC, 1, refused=True),
    Retired("--blacklist-cooldown-range", _ELASTIC, 2, refused=True),
    Retired(
        "--jsrun", "jsrun is not used; start the job with an mpirun or srun of its own",
        refused=True,
    ),
)  # fmt: skip
