"""The collectives as functions of autograd: each has a gradient that is a collective itself.

Every rank runs the same backward passes, because a gradient waits for all ranks as its collective
does, and raises the same errors. It is named after the call, with `.backward` at the end.

The rules are Horovod's. With Average and Sum it is that of the sum of all ranks' losses; with Min,
Max, Product and Adasum the same operation on the gradients is no derivative.

Derivatives of second order (`create_graph=True`) are found too, except in compiled graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoacc import process
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average, Sum
from horoacc.handles import result
from horoacc.process_sets import ProcessSet
from horoacc.torch.plain import PlainCollectives

plain = PlainCollectives()
"""The collectives without autograd."""


def backward_name(name: str | None) -> str | None:
    """Names the gradient's collective after the call's."""
    return None if name is None else f"{name}.backward"


def _dense(grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    # Autograd hands over expanded tensors, such as those of sum().
    return [grad.contiguous() for grad in grads]


class Allreduce(torch.autograd.Function):
    """Allreduce of one or several tensors; their gradients travel without the codec."""

    @staticmethod
    def forward(
        ctx: Any,
        codec: type[Compressor],
        name: str | None,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        """Reduces."""
        ctx.call = (backward_name(name), op, scales, process_set, grouped)
        return tuple(reduce_all(codec, name, op, scales, process_set, grouped, tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The gradient, reduced alike: the same operation, factors and process set.

        It has the shape and type of the input, and travels without the codec of `Compression.int8`;
        under the other compressors it is the gradient of the narrower tensor.
        """
        reduced = Allreduce.apply(NoneCompressor, *ctx.call, *_dense(grads))  # type: ignore[no-untyped-call]
        return (None, None, None, None, None, None, *reduced)


def reduce_all(
    codec: type[Compressor],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Reduces contiguous tensors without autograd: one, or several as a unit if `grouped`."""
    how = (None, name, codec, op, *scales, process_set)
    if grouped:
        return plain.grouped_allreduce(tensors, *how)
    return [plain.allreduce(tensors[0], *how)]


def gather_all(
    name: str | None, process_set: ProcessSet, grouped: bool, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Gathers contiguous tensors without autograd: one, or several as a unit if `grouped`."""
    if grouped:
        return plain.grouped_allgather(tensors, name, process_set)
    return [plain.allgather(tensors[0], name, process_set)]


def scatter_all(
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    grouped: bool,
    tensors: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Reduces and parts tensors without autograd: one, or several as a unit if `grouped`."""
    how = (name, NoneCompressor, op, process_set, *scales)
    if grouped:
        return plain.grouped_reducescatter(tensors, *how)
    return [plain.reducescatter(tensors[0], *how)]


def _averaged(
    grads: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, grouped: bool
) -> Sequence[torch.Tensor]:
    call = (NoneCompressor, name, Average, (1.0, 1.0), process_set, grouped)
    return Allreduce.apply(*call, *grads)  # type: ignore[no-any-return, no-untyped-call]


def averaged_own_rows(
    grads: Sequence[torch.Tensor],
    rows: Sequence[int],
    name: str | None,
    process_set: ProcessSet,
    grouped: bool,
) -> list[torch.Tensor]:
    """Averages gradients of gathered tensors; gives of each a view of this rank's `rows`."""
    reduced = _averaged(grads, name, process_set, grouped)
    all_rows = plain.allgather(
        torch.tensor([list(rows)]), None if name is None else f"{name}.rows", process_set
    )
    begins = all_rows[: process_set.rank()].sum(0).tolist()
    return [
        grad.narrow(0, begin, count)
        for grad, begin, count in zip(reduced, begins, rows, strict=True)
    ]


class Allgather(torch.autograd.Function):
    """All-gather of one or several tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        """Gathers."""
        ctx.call = (backward_name(name), process_set, grouped)
        gathered = gather_all(name, process_set, grouped, tensors)
        ctx.rows = [tensor.shape[0] for tensor in tensors]  # after the call refused a scalar
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The average of the ranks' gradients of the whole, of which each takes the rows it gave.

        It has the shape and type of this rank's input.
        """
        name, process_set, grouped = ctx.call
        own = averaged_own_rows(_dense(grads), ctx.rows, name, process_set, grouped)
        return (None, None, None, *own)


def kept_on_root(reduced: torch.Tensor, root_rank: int) -> torch.Tensor:
    """Gives the tensor on one rank, and zeros on the others."""
    if process.position().rank == root_rank:
        return reduced
    # They depend on it: a derivative of second order, a collective too, must reach every rank.
    nowhere = torch.zeros((), dtype=torch.bool, device=reduced.device)
    return torch.where(nowhere, reduced, torch.zeros_like(reduced))


class Broadcast(torch.autograd.Function):
    """Broadcast of one tensor."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, root_rank: int, process_set: ProcessSet, tensor: torch.Tensor
    ) -> Any:
        """Sends the root's tensor."""
        ctx.call = (backward_name(name), root_rank, process_set)
        return plain.broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """On the root the average of the ranks' gradients, elsewhere zeros; the input's shape."""
        name, root_rank, process_set = ctx.call
        (reduced,) = _averaged(_dense(grads), name, process_set, False)
        return None, None, None, kept_on_root(reduced, root_rank)


class Alltoall(torch.autograd.Function):
    """All-to-all of one tensor."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, splits: Any, process_set: ProcessSet, tensor: torch.Tensor
    ) -> Any:
        """Sends rows to the other ranks."""
        output, received = result(plain.alltoall_async(tensor, splits, name, process_set))
        ctx.call = (backward_name(name), received, process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The rows of the gradients, sent back to whom they came from.

        It has the shape of the input; the received splits have no gradient.
        """
        name, received, process_set = ctx.call
        grad = grads[0].contiguous()
        back, _ = Alltoall.apply(name, received, process_set, grad)  # type: ignore[no-untyped-call]
        return None, None, None, back


class Reducescatter(torch.autograd.Function):
    """Reduce-scatter of one or several tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        scales: tuple[float, float],
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        """Reduces and gives this rank its part."""
        ctx.call = (backward_name(name), op, scales, process_set, grouped)
        return tuple(scatter_all(name, op, scales, process_set, grouped, tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The gradients of all parts, gathered and multiplied by the factors.

        With Sum also by the number of ranks, as in Horovod. It has the shape of the input.
        """
        name, op, scales, process_set, grouped = ctx.call
        factor = scales[0] * scales[1] * (process_set.size() if op == Sum else 1)
        scaled = [grad if factor == 1 else grad * factor for grad in _dense(grads)]
        gathered = Allgather.apply(name, process_set, grouped, *scaled)  # type: ignore[no-untyped-call]
        return (None, None, None, None, None, *gathered)
