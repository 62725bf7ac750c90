"""The collectives of torch's tensors, with autograd where Horovod has it.

Tensors are contiguous, on the CPU or on a CUDA GPU (docs/gpu.md). The out-of-place calls that wait
are differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling

from horoacc import arrays
from horoacc.calls import ALLGATHER, ALLTOALL, member_names
from horoacc.collectives import barrier as barrier
from horoacc.collectives import join as join
from horoacc.complaints import check_group, complaining
from horoacc.handles import poll as poll
from horoacc.handles import synchronize as synchronize
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch import compiled
from horoacc.torch.autograd import Allgather, Alltoall, Broadcast
from horoacc.torch.compression import Compression as Compression
from horoacc.torch.reductions import Reductions
from horoacc.torch.tensors import torch_tensors
from horoacc.torch.ways import any_tracked, apply, set_number, tracked

if not TYPE_CHECKING:  # mypy knows no lists but literal ones; without a list all names are public
    __all__ = arrays.__all__


def _row_counts(splits: Any, name: str | None, process_set: ProcessSet) -> Any:
    """Checks Horovod's rule for splits; other sequences of integers are welcome too."""
    if not isinstance(splits, torch.Tensor):
        return splits
    with complaining(ALLTOALL, member_names("alltoall", name)[0], process_set):
        if splits.dim() != 1:
            raise ValueError(f"splits must have one dimension, not {splits.dim()}.")
        if splits.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"splits must be of type int32, not {splits.dtype}.")
        return splits.tolist()


class TorchCollectives(Reductions):
    """Horovod's collectives for torch's tensors."""

    def __init__(self) -> None:
        """Makes the functions."""
        super().__init__(lambda _: torch_tensors)

    def allgather(
        self,
        tensor: torch.Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.allgather`; differentiable."""
        if is_compiling():
            return compiled.allgather([tensor], name, False, set_number(process_set))[0]  # type: ignore[no-any-return]
        if not tracked(tensor):
            return super().allgather(tensor, name, process_set)  # type: ignore[no-any-return]
        return apply(Allgather, name, process_set, False, tensor)[0]  # type: ignore[no-any-return]

    def grouped_allgather(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_allgather`; differentiable."""
        check_group(tensors, ALLGATHER, name, process_set)
        if is_compiling():
            return compiled.allgather(list(tensors), name, True, set_number(process_set))  # type: ignore[no-any-return]
        if not any_tracked(tensors):
            return super().grouped_allgather(tensors, name, process_set)
        return list(apply(Allgather, name, process_set, True, *tensors))

    def broadcast(
        self,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.broadcast`; differentiable."""
        if is_compiling():
            return compiled.broadcast(tensor, root_rank, name, set_number(process_set))  # type: ignore[no-any-return]
        if not tracked(tensor):
            return super().broadcast(tensor, root_rank, name, process_set)  # type: ignore[no-any-return]
        return apply(Broadcast, name, root_rank, process_set, tensor)  # type: ignore[no-any-return]

    def alltoall_async(
        self,
        tensor: torch.Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """See `Collectives.alltoall_async`."""
        counts = _row_counts(splits, name, process_set)
        return super().alltoall_async(tensor, counts, name, process_set)

    def alltoall(
        self,
        tensor: torch.Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """See `Collectives.alltoall`; differentiable."""
        if is_compiling():
            rows = None if splits is None else torch.as_tensor(splits)
            both = compiled.alltoall(tensor, rows, name, set_number(process_set))
            return both[0] if splits is None else both
        counts = _row_counts(splits, name, process_set)
        if not tracked(tensor):
            return super().alltoall(tensor, counts, name, process_set)
        received = apply(Alltoall, name, counts, process_set, tensor)
        return received[0] if splits is None else received


_collectives = TorchCollectives()

allreduce = _collectives.allreduce
allreduce_async = _collectives.allreduce_async
allreduce_ = _collectives.allreduce_
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_async = _collectives.broadcast_async
broadcast_ = _collectives.broadcast_
broadcast_async_ = _collectives.broadcast_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
