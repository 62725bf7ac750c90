"""Tells how a collective of torch runs: plainly, recorded by autograd, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo

from horoacc.process_sets import ProcessSet


def tracked(tensor: torch.Tensor) -> bool:
    """Says whether autograd has to record the calls with a tensor."""
    # Another object is refused later, with a better message than a missing attribute's.
    return getattr(tensor, "requires_grad", False) and torch.is_grad_enabled()


def any_tracked(tensors: Sequence[torch.Tensor]) -> bool:
    """Says whether autograd has to record the calls with one of the tensors.

    A loop, because a blocking call of a small tensor feels each function that it passes.
    """
    if torch.is_grad_enabled():
        for tensor in tensors:
            if getattr(tensor, "requires_grad", False):
                return True
    return False


def apply(function: Any, *arguments: Any) -> Any:
    """Applies a `torch.autograd.Function`; torch's stubs leave `apply` untyped."""
    return function.apply(*arguments)


# torch.compiler.disable does the same, but loads the compiler, which takes as long as torch itself.
@_disable_dynamo
def uncompiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that is not to be compiled, nor any function that it calls."""
    return function(*arguments)


def set_number(process_set: ProcessSet) -> int:
    """The number that stands for a set in a compiled graph; the call checks it when it runs."""
    number = process_set.process_set_id
    if number is None:
        raise ValueError("The process set is not registered; use hvd.add_process_set().")
    return number
