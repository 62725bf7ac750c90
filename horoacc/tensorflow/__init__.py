"""Horovod's API for TensorFlow 2, and for TF1-style graphs through `tf.compat.v1`.

import horoacc.tensorflow as hvd

hvd.init()
with tf.GradientTape() as tape:
    ...
tape = hvd.DistributedGradientTape(tape)
"""

import importlib
from typing import Any

from horoacc import basics, job
from horoacc._version import __version__
from horoacc.job import *
from horoacc.tensorflow import _ops, elastic
from horoacc.tensorflow import gradients as _gradients  # noqa: F401 - registers them
from horoacc.tensorflow.compression import Compression
from horoacc.tensorflow.exchanges import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
)
from horoacc.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horoacc.tensorflow.gradient_aggregation import LocalGradientAggregation
from horoacc.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from horoacc.tensorflow.horovod_names import (  # noqa: F401 - Horovod has them here
    _allreduce,
    _executing_eagerly,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    refs_to_vars,
    split_list,
    vars_to_refs,
)
from horoacc.tensorflow.optimizer import DistributedOptimizer
from horoacc.tensorflow.places import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horoacc.tensorflow.reductions import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape",
    "DistributedOptimizer", "PartialDistributedGradientTape", "SyncBatchNormalization",
    "__version__", "allgather", "allgather_object", "allreduce", "alltoall", "broadcast",
    "broadcast_", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "broadcast_variables", "elastic", "grouped_allgather", "grouped_allreduce",
    "grouped_reducescatter", "init", "join", "local_rank_op", "local_size_op",
    "process_set_included_op", "rank_op", "reducescatter", "size_op",
]  # fmt: skip
__all__ += job.NAMES

# TensorFlow's allocator can be chosen until it allocates for the first time.
_ops.redirect_early()

LocalGradientAggregationHelper = LocalGradientAggregation
"""Horovod's name."""


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job; see `horoacc.init`. Also has TensorFlow's ops use the engine.

    Args:
        comm: None for all processes of the job, a list of their ranks, or an mpi4py communicator.
        process_sets: Process sets to register, the same on every rank, or "dynamic".

    Raises:
        ConfigError: The environment or a setting cannot work.
        OpsBuildError: The ops had to be compiled and could not be.
        Timeout: Some ranks did not come.
        ValueError: A process set cannot be.
    """
    basics.init(comm, process_sets)
    _ops.attach()


def __getattr__(name: str) -> Any:
    # Keras takes longer to import than everything else here.
    if name == "SyncBatchNormalization":
        return importlib.import_module("horoacc.tensorflow.sync_batch_norm").SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
