"""The collectives of torch's tensors, with autograd where Horovod has it.

Tensors are contiguous and on the CPU. The out-of-place calls that wait are differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoacc.calls import check_list, check_scatter_op, resolve_op
from horoacc.collectives import Collectives, barrier
from horoacc.compression import Compressor, decompress_all
from horoacc.dtypes import Average
from horoacc.handles import poll, synchronize
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch.autograd import Allgather, Allreduce, Alltoall, Broadcast, Reducescatter
from horoacc.torch.compression import Compression
from horoacc.torch.tensors import torch_tensors

__all__ = [
    "allgather",
    "allgather_async",
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
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]


def _tracked(tensor: torch.Tensor) -> bool:
    # What is no tensor is refused later, with a better message than a missing attribute's.
    return getattr(tensor, "requires_grad", False) and torch.is_grad_enabled()


def _any_tracked(tensors: Sequence[torch.Tensor]) -> bool:
    return any(_tracked(tensor) for tensor in tensors)


def _apply(function: Any, *arguments: Any) -> Any:
    # torch's stubs leave `apply` untyped.
    return function.apply(*arguments)


def _row_counts(splits: Any) -> Any:
    """Checks Horovod's rule for splits; other sequences of integers are welcome too."""
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1:
            raise ValueError(f"splits must have one dimension, not {splits.dim()}.")
        if splits.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"splits must be of type int32, not {splits.dtype}.")
        return splits.tolist()
    return splits


class TorchCollectives(Collectives):
    """Horovod's collectives for torch's tensors."""

    def __init__(self) -> None:
        """Makes the functions."""
        super().__init__(lambda _: torch_tensors)

    def allreduce(
        self,
        tensor: torch.Tensor,
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.allreduce`; differentiable."""
        scales = (prescale_factor, postscale_factor)
        if not _tracked(tensor):
            return super().allreduce(tensor, average, name, compression, op, *scales, process_set)  # type: ignore[no-any-return]
        narrow, context = compression.compress(tensor)
        op = resolve_op(op, average)
        (reduced,) = _apply(Allreduce, name, op, scales, process_set, False, narrow)
        return compression.decompress(reduced, context)  # type: ignore[no-any-return]

    def grouped_allreduce(
        self,
        tensors: Sequence[torch.Tensor],
        average: bool | None = None,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_allreduce`; differentiable."""
        check_list(tensors, "allreduce")
        scales = (prescale_factor, postscale_factor)
        if not _any_tracked(tensors):
            return super().grouped_allreduce(
                tensors, average, name, compression, op, *scales, process_set
            )
        narrow = [compression.compress(tensor) for tensor in tensors]
        op = resolve_op(op, average)
        reduced = _apply(
            Allreduce, name, op, scales, process_set, True, *(tensor for tensor, _ in narrow)
        )
        return decompress_all(compression, reduced, narrow)

    def allgather(
        self,
        tensor: torch.Tensor,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.allgather`; differentiable."""
        if not _tracked(tensor):
            return super().allgather(tensor, name, process_set)  # type: ignore[no-any-return]
        return _apply(Allgather, name, process_set, False, tensor)[0]  # type: ignore[no-any-return]

    def grouped_allgather(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_allgather`; differentiable."""
        check_list(tensors, "allgather")
        if not _any_tracked(tensors):
            return super().grouped_allgather(tensors, name, process_set)
        return list(_apply(Allgather, name, process_set, True, *tensors))

    def broadcast(
        self,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> torch.Tensor:
        """See `Collectives.broadcast`; differentiable."""
        if not _tracked(tensor):
            return super().broadcast(tensor, root_rank, name, process_set)  # type: ignore[no-any-return]
        return _apply(Broadcast, name, root_rank, process_set, tensor)  # type: ignore[no-any-return]

    def alltoall_async(
        self,
        tensor: torch.Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """See `Collectives.alltoall_async`."""
        return super().alltoall_async(tensor, _row_counts(splits), name, process_set)

    def alltoall(
        self,
        tensor: torch.Tensor,
        splits: Any = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """See `Collectives.alltoall`; differentiable."""
        if not _tracked(tensor):
            return super().alltoall(tensor, _row_counts(splits), name, process_set)
        received = _apply(Alltoall, name, _row_counts(splits), process_set, tensor)
        return received[0] if splits is None else received

    def reducescatter(
        self,
        tensor: torch.Tensor,
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> torch.Tensor:
        """See `Collectives.reducescatter`; differentiable."""
        scales = (prescale_factor, postscale_factor)
        if not _tracked(tensor):
            return super().reducescatter(tensor, name, compression, op, process_set, *scales)  # type: ignore[no-any-return]
        narrow, context = compression.compress(tensor)
        op = check_scatter_op(op)
        (part,) = _apply(Reducescatter, name, op, scales, process_set, False, narrow)
        return compression.decompress(part, context)  # type: ignore[no-any-return]

    def grouped_reducescatter(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None = None,
        compression: type[Compressor] = Compression.none,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[torch.Tensor]:
        """See `Collectives.grouped_reducescatter`; differentiable."""
        check_list(tensors, "reducescatter")
        scales = (prescale_factor, postscale_factor)
        if not _any_tracked(tensors):
            return super().grouped_reducescatter(
                tensors, name, compression, op, process_set, *scales
            )
        narrow = [compression.compress(tensor) for tensor in tensors]
        op = check_scatter_op(op)
        parts = _apply(
            Reducescatter, name, op, scales, process_set, True, *(tensor for tensor, _ in narrow)
        )
        return decompress_all(compression, parts, narrow)


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
