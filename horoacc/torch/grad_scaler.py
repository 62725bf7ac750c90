"""Mixed precision: the ranks must agree about overflow, or some would step and others not.

`GradScaler.unscale_` and `step` look for infinities before they call the optimizer. For a
distributed optimizer they first wait for its reductions, so no `synchronize()` is needed, and
afterwards give it their findings. In an elastic job a scaler that is in no state has another scale
on ranks that are new: before the first loss of an epoch all take that of rank 0.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from horoacc import process
from horoacc.elastic import member
from horoacc.torch.functions import broadcast_object


def teach_grad_scaler() -> None:
    """Makes torch's GradScaler heed distributed optimizers. A second call does nothing.

    These have two methods: `_before_unscale()`, and `_after_unscale(overflows)`, which may change
    the flags that say whether an infinity was found.
    """
    scaler: Any = torch.amp.grad_scaler.GradScaler
    if not hasattr(scaler.step, "_heeds_distributed_optimizers"):
        scaler.scale = _agreeing_scale(scaler.scale)
        scaler.unscale_ = _heeding_unscale(scaler.unscale_)
        scaler.step = _heeding_step(scaler.step)


def _agreeing_scale(original: Any) -> Any:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        if process.is_elastic() and self._enabled:
            epoch = member.epoch()
            if getattr(self, "_agreed_in", None) != epoch:
                self.load_state_dict(broadcast_object(self.state_dict(), name="grad_scaler"))
                self._agreed_in = epoch
        return original(self, outputs)

    return scale


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
