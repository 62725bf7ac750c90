"""The one table of settings, and what is read while something is compiled."""

from __future__ import annotations

from horoacc.settings.core_rows import CORE_ROWS
from horoacc.settings.python_rows import AUTOTUNE_ROWS, ELASTIC_ROWS, METRICS_ROWS, PYTHON_ROWS
from horoacc.settings.setting import BuildVariable, Setting

TABLE: tuple[Setting, ...] = (
    *CORE_ROWS,
    *PYTHON_ROWS,
    *ELASTIC_ROWS,
    *METRICS_ROWS,
    *AUTOTUNE_ROWS,
)

SECTIONS = {
    "launcher": "Starting ranks",
    "elastic": "Elastic jobs",
    "params": "Collectives",
    "network": "Network between hosts",
    "stall_check": "Stalls and failures",
    "timeline": "Timeline",
    "metrics": "Metrics",
    "autotune": "Tuning while a job runs",
    "logging": "Logging",
    "library_options": "Libraries and folders",
}
"""The sections of a configuration file, with their headings in --help and docs/settings.md."""

# Read by setup.py, which cannot import this package, and by horoacc/ops_build.py.
BUILD: tuple[BuildVariable, ...] = (
    BuildVariable(
        "HOROACC_BUILD_TYPE", "Release", "CMake's build type when the package is installed."
    ),
    BuildVariable("HOROACC_TESTS", "OFF", "`ON` also configures the C++ tests."),
    BuildVariable(
        "HOROACC_CUDA", "ON", "`OFF` leaves the kernels for GPUs out, also with an nvcc."
    ),
    BuildVariable(
        "HOROACC_OPENMPI_PREFIX",
        "",
        "Folder with `include/mpi.h` and `lib/` of the Open MPI for its plug-in; empty: the "
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
        "Frameworks with commas between: it compiles the ops of these only. "
        "`1`: ops go into the package instead of the cache, as an installation wants them.",
    ),
    BuildVariable(
        "HOROACC_BUILD_FOLDER",
        "",
        "Folder in which CMake builds for one interpreter after the other, so that the core is "
        "compiled once; empty: one for each, in `build`.",
    ),
    BuildVariable(
        "HOROACC_OPS_WHEEL",
        "",
        "Wheel of the same sources whose TensorFlow ops, which serve all interpreters, are taken "
        "where TensorFlow is not installed.",
    ),
)
