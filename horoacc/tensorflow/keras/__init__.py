"""Horovod's API for `tf.keras`: Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1.

The same as `horoacc.keras`, but for the order of some arguments.
"""

from typing import Any

from horoacc import job
from horoacc._version import __version__
from horoacc.collectives.calls import resolve_op
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average
from horoacc.job import *
from horoacc.keras import (
    Compression,
    PartialDistributedOptimizer,
    allgather,
    allgather_object,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    functions,
    init,
    load_model,
    reducescatter,
)
from horoacc.keras.gradients import Options
from horoacc.keras.optimizer import distribute
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.reduction import chosen_groups
from horoacc.tensorflow.keras import callbacks, elastic

__all__ = [
    "Compression", "DistributedOptimizer", "PartialDistributedOptimizer", "__version__",
    "allgather", "allgather_object", "allreduce", "broadcast", "broadcast_global_variables",
    "broadcast_object", "callbacks", "elastic", "init", "load_model", "reducescatter",
]  # fmt: skip
__all__ += job.NAMES


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer; arguments and errors as for `horoacc.keras.DistributedOptimizer`.

    Returns:
        The optimizer.
    """
    del device_dense, device_sparse
    return distribute(optimizer, Options(
        name, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, chosen_groups(num_groups, groups),
        process_set, (), scale_local_gradients,
    ))  # fmt: skip


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = NoneCompressor,
) -> Any:
    """Reduces a value; arguments and errors as for `horoacc.keras.allreduce`.

    `average` is the older way to say `op=Average` (True) or `op=Sum` (False), which is Average by
    default.

    Returns:
        A tensor of the backend.
    """
    chosen = resolve_op(op, average)
    return functions.allreduce(
        value, name, None, prescale_factor, postscale_factor, chosen, compression
    )
