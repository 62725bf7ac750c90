"""The collectives as operators of torch, which `torch.compile` takes into its graphs whole.

Each has a fake kernel, which says the result's shape without running, and a gradient, which is
an operator again. How many rows all-gather and all-to-all give depends on the other ranks: a graph
with them needs `torch._dynamo.config.capture_dynamic_output_shape_ops = True`.

Process sets are passed by number, and names are those of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from horoacc.compression import NoneCompressor
from horoacc.dtypes import Average, Sum
from horoacc.handles import synchronize
from horoacc.process_sets import registered
from horoacc.torch.autograd import (
    averaged_own_rows,
    backward_name,
    gather_all,
    kept_on_root,
    plain,
    reduce_all,
    scatter_all,
)

# The host takes part, so the CUDA graphs of `mode="reduce-overhead"` must end before an operator.
_NO_CUDA_GRAPH = (torch.Tag.cudagraph_unsafe,)


def _like(tensor: Tensor, rows: Any = None) -> Tensor:
    """A fake result: contiguous, with its own number of rows."""
    shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
    return tensor.new_empty(shape)


def _dense(tensors: Sequence[Tensor]) -> list[Tensor]:
    # The compiler chooses the strides of its results.
    return [tensor.contiguous() for tensor in tensors]


def _scattered_rows(rows: Any, process_set: int) -> Any:
    """The number of rows that this rank gets: the first ranks get one of the rest each."""
    members = registered(process_set)
    return (rows + (members.size() or 1) - 1 - (members.rank() or 0)) // (members.size() or 1)


@custom_op("horoacc::allreduce", mutates_args=(), tags=_NO_CUDA_GRAPH)
def allreduce(
    tensors: list[Tensor], name: str | None, op: int, prescale: float, postscale: float,
    grouped: bool, process_set: int,
) -> list[Tensor]:  # fmt: skip
    """Reduces tensors."""
    members = registered(process_set)
    scales = (prescale, postscale)
    return reduce_all(NoneCompressor, name, op, scales, members, grouped, _dense(tensors))


@allreduce.register_fake
def _(tensors: list[Tensor], *_: Any) -> list[Tensor]:
    return [_like(tensor) for tensor in tensors]


def _keep_reduction(ctx: Any, inputs: Any, output: Any) -> None:
    _, name, *rest = inputs
    ctx.call = (backward_name(name), *rest)


def _allreduce_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    return (allreduce(list(grads), *ctx.call), None, None, None, None, None, None)


allreduce.register_autograd(_allreduce_backward, setup_context=_keep_reduction)


@custom_op("horoacc::allgather", mutates_args=(), tags=_NO_CUDA_GRAPH)
def allgather(
    tensors: list[Tensor], name: str | None, grouped: bool, process_set: int
) -> list[Tensor]:
    """Concatenates the ranks' tensors."""
    return gather_all(name, registered(process_set), grouped, _dense(tensors))


@allgather.register_fake
def _(tensors: list[Tensor], *_: Any) -> list[Tensor]:
    return [_like(tensor, get_ctx().new_dynamic_size()) for tensor in tensors]


@custom_op("horoacc::allgather_backward", mutates_args=(), tags=_NO_CUDA_GRAPH)
def allgather_backward(
    grads: list[Tensor], rows: list[int], name: str | None, grouped: bool, process_set: int
) -> list[Tensor]:
    """Averages the gradients and takes this rank's rows."""
    members = registered(process_set)
    with torch.no_grad():
        own = averaged_own_rows(_dense(grads), rows, name, members, grouped)
    return [part.clone() for part in own]


@allgather_backward.register_fake
def _(grads: list[Tensor], rows: list[int], *_: Any) -> list[Tensor]:
    return [_like(grad, count) for grad, count in zip(grads, rows, strict=True)]


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, name, grouped, process_set = inputs
    ctx.call = ([tensor.shape[0] for tensor in tensors], backward_name(name), grouped, process_set)


def _allgather_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    return (allgather_backward(list(grads), *ctx.call), None, None, None)


allgather.register_autograd(_allgather_backward, setup_context=_keep_rows)


@custom_op("horoacc::broadcast", mutates_args=(), tags=_NO_CUDA_GRAPH)
def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: int) -> Tensor:
    """Sends the root's tensor to all ranks."""
    return plain.broadcast(tensor.contiguous(), root_rank, name, registered(process_set))


@broadcast.register_fake
def _(tensor: Tensor, *_: Any) -> Tensor:
    return _like(tensor)


def _keep_root(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.root, name, process_set = inputs
    ctx.call = (backward_name(name), Average, 1.0, 1.0, False, process_set)


def _broadcast_backward(ctx: Any, grad: Tensor) -> Any:
    return (kept_on_root(allreduce([grad], *ctx.call)[0], ctx.root), None, None, None)


broadcast.register_autograd(_broadcast_backward, setup_context=_keep_root)


@custom_op("horoacc::alltoall", mutates_args=(), tags=_NO_CUDA_GRAPH)
def alltoall(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: int
) -> tuple[Tensor, Tensor]:
    """Sends rows to the other ranks; also gives how many came from each."""
    members = registered(process_set)
    rows = None if splits is None else splits.tolist()
    output, received = synchronize(plain.alltoall_async(tensor.contiguous(), rows, name, members))
    return output, received


@alltoall.register_fake
def _(tensor: Tensor, splits: Tensor | None, name: Any, process_set: int) -> Any:
    count = registered(process_set).size() or 1
    received = tensor.new_empty((count,), dtype=torch.int32, device="cpu")
    return _like(tensor, get_ctx().new_dynamic_size()), received


@custom_op("horoacc::alltoall_backward", mutates_args=(), tags=_NO_CUDA_GRAPH)
def alltoall_backward(
    grad: Tensor, received: Tensor, rows: int, name: str | None, process_set: int
) -> Tensor:
    """Sends the rows of the gradient back."""
    members = registered(process_set)
    return plain.alltoall(grad.contiguous(), received.tolist(), name, members)[0]  # type: ignore[no-any-return]


@alltoall_backward.register_fake
def _(grad: Tensor, received: Tensor, rows: int, *_: Any) -> Tensor:
    return _like(grad, rows)


def _keep_received(ctx: Any, inputs: Any, output: Any) -> None:
    tensor, _, name, process_set = inputs
    ctx.save_for_backward(output[1])
    ctx.call = (tensor.shape[0], backward_name(name), process_set)


def _alltoall_backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    (received,) = ctx.saved_tensors
    return (alltoall_backward(grad, received, *ctx.call), None, None, None)


alltoall.register_autograd(_alltoall_backward, setup_context=_keep_received)


@custom_op("horoacc::reducescatter", mutates_args=(), tags=_NO_CUDA_GRAPH)
def reducescatter(
    tensors: list[Tensor], name: str | None, op: int, prescale: float, postscale: float,
    grouped: bool, process_set: int,
) -> list[Tensor]:  # fmt: skip
    """Reduces tensors and gives this rank its part."""
    members = registered(process_set)
    return scatter_all(name, op, (prescale, postscale), members, grouped, _dense(tensors))


@reducescatter.register_fake
def _(tensors: list[Tensor], name: Any, op: Any, pre: Any, post: Any, grouped: Any,
      process_set: int) -> list[Tensor]:  # fmt: skip
    return [_like(tensor, _scattered_rows(tensor.shape[0], process_set)) for tensor in tensors]


@custom_op("horoacc::reducescatter_backward", mutates_args=(), tags=_NO_CUDA_GRAPH)
def reducescatter_backward(
    grads: list[Tensor], rows: list[int], factor: float, name: str | None, grouped: bool,
    process_set: int,
) -> list[Tensor]:  # fmt: skip
    """Gathers the gradients."""
    scaled = _dense([grad * factor for grad in grads])
    return gather_all(name, registered(process_set), grouped, scaled)


@reducescatter_backward.register_fake
def _(grads: list[Tensor], rows: list[int], *_: Any) -> list[Tensor]:
    return [_like(grad, count) for grad, count in zip(grads, rows, strict=True)]


def _keep_scatter(ctx: Any, inputs: Any, output: Any) -> None:
    tensors, name, op, prescale, postscale, grouped, process_set = inputs
    factor = prescale * postscale * ((registered(process_set).size() or 1) if op == Sum else 1)
    rows = [tensor.shape[0] for tensor in tensors]
    ctx.call = (rows, factor, backward_name(name), grouped, process_set)


def _reducescatter_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    gathered = reducescatter_backward(list(grads), *ctx.call)
    return (gathered, None, None, None, None, None, None)


reducescatter.register_autograd(_reducescatter_backward, setup_context=_keep_scatter)
