"""Horovod's API for PyTorch.

import horoacc.torch as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""

from typing import Any

from horoacc import arrays, basics, job
from horoacc._version import __version__
from horoacc.job import *
from horoacc.torch import _ops, elastic, process_group
from horoacc.torch.compile_choice import optimize
from horoacc.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horoacc.torch.ops import *
from horoacc.torch.optimizer import DistributedOptimizer
from horoacc.torch.sparse import sparse_allreduce_async
from horoacc.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "DistributedOptimizer", "SyncBatchNorm", "__version__", "allgather_object",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "elastic", "init",
    "optimize", "sparse_allreduce_async",
]  # fmt: skip
__all__ += job.NAMES
__all__ += arrays.__all__


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job; see `horoacc.init`. Also lets torch allocate in the arena.

    Args:
        comm: None for all processes of the job, a list of their ranks, or an mpi4py communicator.
        process_sets: Process sets to register, the same on every rank, or "dynamic".

    Raises:
        ConfigError: The environment or a setting cannot work.
        Timeout: Some ranks did not come.
        ValueError: A process set cannot be.
    """
    basics.init(comm, process_sets)
    _ops.attach()


process_group.register()
