"""Hyperparameters after the ranks of an elastic job have changed: all ranks step with the same."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from horoacc import process
from horoacc.dtypes import Sum
from horoacc.elastic import member
from horoacc.torch import ops
from horoacc.torch.functions import broadcast_object, broadcast_parameters

CALL = "hyperparameters"
"""The name of the collectives."""
_DIGEST = 0xFFFFFF
"""24 bits: the sum of 2**15 ranks' squares fits an int64."""


@dataclass
class Agreement:
    """How far the ranks of an optimizer have agreed in an epoch of the job."""

    epoch: int = 0
    steps: int = 0
    parted: bool = False
    """Whether they had other values after they had agreed: something sets them on each rank."""


def agree(optimizer: Any) -> None:
    """Before a step, gives all ranks rank 0's learning rates and the like, should they differ.

    A schedule that is in no state, or that a rank had advanced when it met the error, would have
    the ranks part without a word. They compare at the steps 1, 2, 4, 8, … of an epoch, and at each
    step once they have parted again; a rank of them all does not know whether another's have
    changed. Outside of elastic jobs, and before the first change of the ranks, this does nothing.

    Args:
        optimizer: One that all ranks step.

    Raises:
        HorovodInternalError: The collective failed.
    """
    epoch = member.epoch()
    if epoch <= 1:
        return
    if optimizer._agreement.epoch != epoch:
        optimizer._agreement = Agreement(epoch)
    known = optimizer._agreement
    known.steps += 1
    if known.steps & (known.steps - 1) and not known.parted:
        return
    own = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    digest = _digest(own)
    # Ranks that have joined add zeros.
    sums = torch.tensor([1, digest, digest * digest])
    ranks, total, squares = ops.allreduce(sums, op=Sum, name=CALL).tolist()
    if ranks * squares == total * total:  # their variance is 0
        return
    if ranks < process.position().size:
        warnings.warn("some ranks step with other hyperparameters than others", stacklevel=3)
        return  # those that have joined take part in no broadcast
    again, known.parted = known.parted, known.steps > 1
    if known.steps > 2 and not again:
        # They have taken steps that they have not compared.
        params = [param for group in optimizer.param_groups for param in group["params"]]
        broadcast_parameters(params, 0)
    other = _take(optimizer.param_groups, broadcast_object(own, 0, name=CALL))
    if other and not again:
        changed = "the ranks had changed"
        advice = ""
        if known.parted:
            changed = "all ranks had taken its values"
            advice = ": put the scheduler, or whatever sets them, into the state"
        warnings.warn(
            f"rank {process.position().rank} had other values of {', '.join(sorted(other))} than "
            f"rank 0 after {changed}, and takes those of rank 0{advice}",
            stacklevel=3,
        )


def _digest(groups: Any) -> int:
    plain = [
        {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
        }
        for group in groups
    ]
    return zlib.crc32(repr(plain).encode()) & _DIGEST


def _take(groups: Any, values: Any) -> set[str]:
    """Takes rank 0's values. Returns the names of those that were others."""
    other = set()
    for group, given in zip(groups, values, strict=True):
        for name, value in given.items():
            mine = group.get(name)
            if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor):
                if not torch.equal(mine.cpu(), value.cpu()):
                    other.add(name)
                    mine.copy_(value)
            elif mine != value:
                other.add(name)
                group[name] = value
    return other
