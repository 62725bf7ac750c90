"""HoroACC trains one model on many processes.

This module is the frontend for NumPy arrays and anything with DLPack; `horoacc.torch` is the one
for PyTorch. It imports no framework, and loads the module of a name when the name is first used: a
launcher of jobs needs none of them.

    import horoacc as hvd

    hvd.init()
    total = hvd.allreduce(array, op=hvd.Sum)
"""

import importlib
from typing import TYPE_CHECKING, Any

from horoacc._version import __version__

if TYPE_CHECKING:
    from horoacc import elastic as elastic
    from horoacc import errors as errors
    from horoacc.arrays import *
    from horoacc.basics import init as init
    from horoacc.dropin import install_as_horovod as install_as_horovod
    from horoacc.job import *
    from horoacc.launcher.function import run as run
    from horoacc.objects import *

# The names by the module that defines them: `__all__` of those modules would be known only after
# they are loaded.
_HOMES = {
    "arrays": (
        "Compression allgather allgather_async allreduce allreduce_ allreduce_async "
        "allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_ broadcast_async "
        "broadcast_async_ grouped_allgather grouped_allgather_async grouped_allreduce "
        "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ "
        "grouped_reducescatter grouped_reducescatter_async join poll reducescatter "
        "reducescatter_async synchronize"
    ),
    "basics": (
        "counters cross_rank cross_size init is_homogeneous is_initialized local_rank metrics "
        "local_size rank shutdown size start_timeline stop_timeline"
    ),
    "builds": (
        "ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built mpi_enabled "
        "mpi_threads_supported nccl_built rocm_built"
    ),
    "dropin": "install_as_horovod",
    "dtypes": "Adasum Average Max Min Product Sum",
    "errors": "HorovodInternalError",
    "launcher.function": "run",
    "objects": "allgather_object broadcast_object",
    "process_sets": "ProcessSet add_process_set global_process_set remove_process_set",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("elastic", "errors")

__all__ = ["__version__"]
__all__ += [*_MODULES, *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"horoacc.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"horoacc.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
