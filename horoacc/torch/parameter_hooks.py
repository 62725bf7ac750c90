"""One hook for each parameter's gradient: a later optimizer's replaces an earlier's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

# Removes each parameter's hook.
_take_off: Any = WeakIdKeyDictionary()


def take_off(param: torch.Tensor) -> None:
    """Takes a parameter's hook off, if it has one."""
    if param in _take_off:
        _take_off[param]()


def remember(param: torch.Tensor, remove: Callable[[], None]) -> None:
    """Keeps how to take off the hook that a parameter has now."""
    _take_off[param] = remove


def take_over(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """Has a function called when a gradient was accumulated, instead of an earlier optimizer's.

    Not of a parameter that is frozen now; a later gradient of it is found at the end of a step.
    """
    take_off(param)
    if not param.requires_grad:
        return
    register: Any = param.register_post_accumulate_grad_hook
    remember(param, register(hook).remove)
