"""Loads an optimizer's state into the objects that it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def in_place(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, `load_state_dict` of a torch optimizer may be called; the objects stay the same.

    By itself it makes new ones. But a distributed optimizer shares its parameter groups and its
    state with the one that it wraps, of which a learning-rate scheduler may know.
    """
    groups, state = optimizer.param_groups, optimizer.state
    kept = list(groups)
    yield
    if optimizer.param_groups is not groups:
        for group, loaded in zip(kept, optimizer.param_groups, strict=True):
            if group is not loaded:
                group.clear()
                group.update(loaded)
        groups[:] = kept
        optimizer.param_groups = groups
    if optimizer.state is not state:
        loaded_state = dict(optimizer.state)
        state.clear()
        state.update(loaded_state)
        optimizer.state = state
