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
from horoacc.collectives import barrier as barrier
from horoacc.collectives import join as join
from horoacc.collectives.calls import (
    ALLREDUCE,
    ALLTOALL,
    REDUCESCATTER,
    check_scatter_op,
    member_names,
    resolve_op,
)
from horoacc.collectives.coded_allreduce import validating_vectors
from horoacc.collectives.validation_errors import validating
from horoacc.compression import (
    Compressor,
    NoneCompressor,
    check_no_codec,
    decompress_all,
    is_codec,
)
from horoacc.handles import poll as poll
from horoacc.handles import synchronize as synchronize
from horoacc.process_sets import ProcessSet
from horoacc.torch import compiled
from horoacc.torch.autograd import Allgather, Allreduce, Alltoall, Broadcast, Reducescatter
from horoacc.torch.compression import Compression as Compression
from horoacc.torch.plain import PlainCollectives
from horoacc.torch.ways import any_tracked, apply, set_number, tracked, uncompiled

if not TYPE_CHECKING:  # mypy knows no lists but literal ones; without a list all names are public
    __all__ = arrays.__all__


class TorchCollectives(PlainCollectives):
    """Horovod's collectives for torch's tensors: recorded by autograd, or traced and compiled."""

    def _only_values(self, tensors: Sequence[torch.Tensor]) -> bool:
        return not is_compiling() and not any_tracked(tensors)

    def _differentiable_allreduce(
        self,
        tensors: Sequence[torch.Tensor],
        average: bool | None,
        name: str | None,
        compression: type[Compressor],
        op: int | None,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[torch.Tensor]:
        if self._only_values(tensors):
            plain = super()._differentiable_allreduce
            given = (tensors, average, name, compression, op, scales, process_set, grouped)
            return uncompiled(plain, *given) if is_codec(compression) else plain(*given)
        if is_codec(compression):
            coded = (compression, name, op, average, scales, process_set, grouped)
            return uncompiled(_coded, tensors, *coded)  # type: ignore[no-any-return]
        if is_compiling():
            narrow = [compression.compress(tensor) for tensor in tensors]
            narrowed = [tensor for tensor, _ in narrow]
            call = (name, resolve_op(op, average), *scales, grouped, set_number(process_set))
            return decompress_all(compression, compiled.allreduce(narrowed, *call), narrow)
        first = member_names("allreduce", name, len(tensors) if grouped else None)[0]
        with validating(ALLREDUCE, first, process_set, grouped=grouped):
            op = resolve_op(op, average)
            narrow = [compression.compress(tensor) for tensor in tensors]
        narrowed = [tensor for tensor, _ in narrow]
        reduced = apply(
            Allreduce, NoneCompressor, name, op, scales, process_set, grouped, *narrowed
        )
        return decompress_all(compression, reduced, narrow)

    def _differentiable_reducescatter(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None,
        compression: type[Compressor],
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[torch.Tensor]:
        if self._only_values(tensors):
            return super()._differentiable_reducescatter(
                tensors, name, compression, op, scales, process_set, grouped
            )
        if is_compiling():
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
            op = check_scatter_op(op)
            narrowed = [tensor for tensor, _ in narrow]
            number = set_number(process_set)
            parts = compiled.reducescatter(narrowed, name, op, *scales, grouped, number)
            return decompress_all(compression, parts, narrow)
        first = member_names("reducescatter", name, len(tensors) if grouped else None)[0]
        with validating(REDUCESCATTER, first, process_set, grouped=grouped):
            check_no_codec(compression)
            narrow = [compression.compress(tensor) for tensor in tensors]
            op = check_scatter_op(op)
        narrowed = [tensor for tensor, _ in narrow]
        parts = apply(Reducescatter, name, op, scales, process_set, grouped, *narrowed)
        return decompress_all(compression, parts, narrow)

    def _differentiable_allgather(
        self,
        tensors: Sequence[torch.Tensor],
        name: str | None,
        process_set: ProcessSet,
        grouped: bool,
    ) -> list[torch.Tensor]:
        if is_compiling():
            return compiled.allgather(list(tensors), name, grouped, set_number(process_set))  # type: ignore[no-any-return]
        if not any_tracked(tensors):
            return super()._differentiable_allgather(tensors, name, process_set, grouped)
        return list(apply(Allgather, name, process_set, grouped, *tensors))

    def _differentiable_broadcast(
        self, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        if is_compiling():
            return compiled.broadcast(tensor, root, name, set_number(process_set))  # type: ignore[no-any-return]
        if not tracked(tensor):
            return super()._differentiable_broadcast(tensor, root, name, process_set)
        return apply(Broadcast, name, root, process_set, tensor)  # type: ignore[no-any-return]

    def _row_counts(self, splits: Any) -> list[int] | None:
        """Checks Horovod's rule for splits; other sequences of integers are accepted too."""
        if isinstance(splits, torch.Tensor):
            if splits.dim() != 1:
                raise ValueError(f"splits must have one dimension, not {splits.dim()}.")
            if splits.dtype not in (torch.int32, torch.int64):
                raise ValueError(f"splits must be of type int32, not {splits.dtype}.")
            splits = splits.tolist()
        return super()._row_counts(splits)

    def _differentiable_alltoall(
        self, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        if is_compiling():
            rows = None if splits is None else torch.as_tensor(splits)
            return compiled.alltoall(tensor, rows, name, set_number(process_set))
        if not tracked(tensor):
            return super()._differentiable_alltoall(tensor, splits, name, process_set)
        with validating(ALLTOALL, member_names("alltoall", name)[0], process_set):
            counts = self._row_counts(splits)
        return apply(Alltoall, name, counts, process_set, tensor)


def _coded(
    tensors: Sequence[torch.Tensor],
    codec: type[Compressor],
    name: str | None,
    op: int | None,
    average: bool | None,
    scales: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
) -> list[torch.Tensor]:
    """Reduces tensors that a codec encodes with NumPy, which is not compiled."""
    with validating_vectors(name, len(tensors), process_set):
        op = resolve_op(op, average)
    return list(apply(Allreduce, codec, name, op, scales, process_set, grouped, *tensors))


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
