"""Horovod's API for Keras 3, on the TensorFlow and the torch backend.

import horoacc.keras as hvd

hvd.init()
model.compile(hvd.DistributedOptimizer(optimizer), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import Any

import keras

from horoacc import basics
from horoacc._version import __version__
from horoacc.basics import (
    counters,
    cross_rank,
    cross_size,
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
from horoacc.dtypes import Adasum, Average, Sum
from horoacc.errors import HorovodInternalError
from horoacc.keras import backend, callbacks, elastic, legacy
from horoacc.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
from horoacc.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from horoacc.keras.progress_bars import teach_progress_bars
from horoacc.keras.saving import load_model
from horoacc.objects import allgather_object, broadcast_object
from horoacc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

Compression = backend.current().Compression


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job; see `horoacc.init`. Also has Keras print on rank 0 only.

    `keras.config.enable_interactive_logging()` lets progress bars and messages of another rank
    through again.

    Args:
        comm: None for all processes of the job, a list of their ranks, or an mpi4py communicator.
        process_sets: Process sets to register, the same on every rank, or "dynamic".

    Raises:
        ConfigError: The environment or a setting cannot work.
        Timeout: Some ranks did not come.
        ValueError: A process set cannot be.
    """
    basics.init(comm, process_sets)
    backend.current().attach()
    if basics.rank() != 0:
        keras.config.disable_interactive_logging()
        teach_progress_bars()
        legacy.silence()


__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
