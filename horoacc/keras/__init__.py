"""Horovod's API for Keras 3, on the TensorFlow and the torch backend.

import horoacc.keras as hvd

hvd.init()
model.compile(hvd.DistributedOptimizer(optimizer), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from typing import Any

import keras

from horoacc import basics, job
from horoacc._version import __version__
from horoacc.job import *
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

__all__ = [
    "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "__version__",
    "allgather", "allgather_object", "allreduce", "broadcast", "broadcast_global_variables",
    "broadcast_object", "callbacks", "elastic", "init", "load_model", "reducescatter",
]  # fmt: skip
__all__ += job.NAMES

Compression = backend.current().frontend.Compression


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
