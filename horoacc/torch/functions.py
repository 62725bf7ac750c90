"""Broadcasts of whole models and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from horoacc import process
from horoacc.handles import synchronize
from horoacc.objects import allgather_object, broadcast_object
from horoacc.torch.loaded_states import in_place
from horoacc.torch.ops import broadcast_async_

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Gives all ranks the root's parameters, as at the beginning of training.

    Args:
        params: A `state_dict()` or a list of (name, tensor) pairs, such as
            `list(model.named_parameters())`, or a list of tensors.
        root_rank: The global rank that sends.

    Raises:
        ValueError: `params` is neither.
        HorovodInternalError: The collective failed.
    """
    pairs: list[tuple[str | None, Any]]
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    _broadcast_all([(name, item) for name, item in pairs if isinstance(item, torch.Tensor)],
                   root_rank)  # fmt: skip


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Gives all ranks the root's optimizer state: momenta, step counts, learning rates.

    A rank whose state is empty, as when only the root loaded a checkpoint, is given it whole; its
    parameters have gradients of zero then, as with Horovod.

    Args:
        optimizer: A torch optimizer, or a `DistributedOptimizer`.
        root_rank: The global rank that sends.
        model: Accepted for Horovod's sake; not needed.

    Raises:
        ValueError: The optimizer is LBFGS, whose state is not a plain dictionary of tensors.
        HorovodInternalError: The collective failed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    own = optimizer.state_dict()
    if not own["state"]:
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if param.requires_grad:
                param.grad = torch.zeros_like(param)
    tensors: list[torch.Tensor] = []
    outline = broadcast_object(_outline(own, tensors), root_rank, "optimizer_state")
    is_root = process.position().rank == root_rank
    blank: list[torch.Tensor] = []
    received = own if is_root else _fill(outline, blank)
    _broadcast_all(
        [(f"optimizer_state.{index}", tensor)
         for index, tensor in enumerate(tensors if is_root else blank)],
        root_rank,
    )  # fmt: skip
    if not is_root:
        with in_place(optimizer):
            optimizer.load_state_dict(received)


class _Blank:
    """Stands for a tensor in the object that is sent before the tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type  # each rank chooses its own GPU


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copies nested containers with what `change` gives for the objects in them."""
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if type(value) is tuple:
        return tuple(_mapped(item, change) for item in value)
    return change(value)


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Copies nested containers with `_Blank`s for tensors, which it collects in order."""

    def blank(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        tensors.append(item)
        return _Blank(item)

    return _mapped(value, blank)


def _fill(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Undoes `_outline` with empty tensors, which it collects in the same order."""

    def empty(item: Any) -> Any:
        if not isinstance(item, _Blank):
            return item
        tensors.append(torch.empty(item.shape, dtype=item.dtype, device=item.device))
        return tensors[-1]

    return _mapped(value, empty)


@torch.no_grad()
def _broadcast_all(pairs: list[tuple[str | None, torch.Tensor]], root_rank: int) -> None:
    flights = []
    for name, tensor in pairs:
        # A tensor in another memory order travels through a copy.
        dense = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
        flights.append((tensor, dense, broadcast_async_(dense, root_rank, name)))
    failure: Exception | None = None
    for tensor, dense, handle in flights:
        try:
            synchronize(handle)
        except Exception as error:
            # The others' names must be free again for a caller that goes on after the error.
            failure = failure or error
            continue
        if dense.data_ptr() != tensor.data_ptr():
            tensor.copy_(dense)
    if failure is not None:
        raise failure
