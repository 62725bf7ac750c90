"""Hyperparameters after the ranks of an elastic job have changed: all ranks step with the same."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from horoacc import process
from horoacc.elastic import member
from horoacc.torch.functions import broadcast_object

CALL = "hyperparameters"
"""The name of the collective."""


def agree(optimizer: Any) -> None:
    """Before the first step of an epoch, gives all ranks rank 0's learning rates and the like.

    A schedule that is in no state, or that a rank had advanced when it met the error, would have
    the ranks part without a word. Outside of elastic jobs, and before the first change of the
    ranks, this does nothing.

    Args:
        optimizer: One that all ranks step.

    Raises:
        HorovodInternalError: The collective failed.
    """
    epoch = member.epoch()
    if epoch <= 1 or optimizer._agreed_in == epoch:
        return
    own = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    other = set()
    for group, values in zip(
        optimizer.param_groups, broadcast_object(own, 0, name=CALL), strict=True
    ):
        for name, value in values.items():
            mine = group.get(name)
            if isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor):
                if not torch.equal(mine.cpu(), value.cpu()):
                    other.add(name)
                    mine.copy_(value)
            elif mine != value:
                other.add(name)
                group[name] = value
    if other:
        warnings.warn(
            f"rank {process.position().rank} had other values of {', '.join(sorted(other))} than "
            "rank 0 after the ranks had changed, and takes those of rank 0",
            stacklevel=3,
        )
    optimizer._agreed_in = epoch
