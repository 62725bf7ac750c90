"""Mixed precision: the ranks must agree about overflow, or some would step and others not.

`GradScaler.unscale_` and `step` look for infinities before they call the optimizer. For a
distributed optimizer they first wait for its reductions, so no `synchronize()` is needed, and
afterwards give it their findings.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.amp.grad_scaler import OptState


def teach_grad_scaler() -> None:
    """Makes torch's GradScaler heed distributed optimizers. A second call does nothing.

    These have two methods: `_before_unscale()`, and `_after_unscale(overflows)`, which may change
    the flags that say whether an infinity was found.
    """
    scaler: Any = torch.amp.grad_scaler.GradScaler
    if not hasattr(scaler.step, "_heeds_distributed_optimizers"):
        scaler.unscale_ = _heeding_unscale(scaler.unscale_)
        scaler.step = _heeding_step(scaler.step)


def _heeding_unscale(original: Any) -> Any:
    @functools.wraps(original)
    def unscale_(self: Any, optimizer: Any) -> None:
        if not self._enabled or not hasattr(optimizer, "_before_unscale"):
            return original(self, optimizer)  # type: ignore[no-any-return]
        optimizer._before_unscale()
        original(self, optimizer)
        state = self._per_optimizer_states[id(optimizer)]
        optimizer._after_unscale(list(state["found_inf_per_device"].values()))
        return None

    return unscale_


def _heeding_step(original: Any) -> Any:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self._enabled and hasattr(optimizer, "_before_unscale"):
            optimizer._before_unscale()
            # An optimizer that unscales in its step would not report overflow.
            if self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
                self.unscale_(optimizer)
        return original(self, optimizer, *args, **kwargs)

    step._heeds_distributed_optimizers = True  # type: ignore[attr-defined]
    return step
