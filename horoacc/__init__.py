"""HoroACC trains one model on many processes.

This module is the door for NumPy arrays and anything with DLPack; `horoacc.torch` is the one for
PyTorch. It imports no framework, and what it has only when that is first asked for: whoever starts
jobs needs none of it.

    import horoacc as hvd

    hvd.init()
    total = hvd.allreduce(array, op=hvd.Sum)
"""

import importlib
from typing import TYPE_CHECKING, Any

from horoacc._version import __version__

if TYPE_CHECKING:
    from horoacc import elastic, errors
    from horoacc.arrays import (
        Compression,
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from horoacc.basics import (
        counters,
        cross_rank,
        cross_size,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
        start_timeline,
        stop_timeline,
    )
    from horoacc.builds import (
        ccl_built,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
    )
    from horoacc.dropin import install_as_horovod
    from horoacc.dtypes import Adasum, Average, Max, Min, Product, Sum
    from horoacc.errors import HorovodInternalError
    from horoacc.launcher.function import run
    from horoacc.objects import allgather_object, broadcast_object
    from horoacc.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "errors",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "install_as_horovod",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

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
        "counters cross_rank cross_size init is_homogeneous is_initialized local_rank "
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


def __getattr__(name: str) -> Any:
    if name in ("elastic", "errors"):
        return importlib.import_module(f"horoacc.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"horoacc.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
