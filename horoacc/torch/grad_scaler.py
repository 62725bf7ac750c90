"""Mixed precision: GradScaler must see reduced gradients, or the ranks disagree about overflow.

`GradScaler.unscale_` and `step` look for infinities before they call the optimizer. For a
distributed optimizer they first wait for its reductions, so no `synchronize()` is needed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def teach_grad_scaler(optimizers: type, synchronize: str) -> None:
    """Makes torch's GradScaler wait for distributed optimizers. A second call does nothing.

    Args:
        optimizers: The class of optimizers to wait for.
        synchronize: The name of their method that waits.
    """
    scaler: Any = torch.amp.grad_scaler.GradScaler
    for name in ("unscale_", "step"):
        original = getattr(scaler, name)
        if not hasattr(original, "_waits_for_reductions"):
            setattr(scaler, name, _waiting(original, optimizers, synchronize))


def _waiting(original: Any, optimizers: type, synchronize: str) -> Any:
    @functools.wraps(original)
    def method(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self._enabled and isinstance(optimizer, optimizers):
            getattr(optimizer, synchronize)()
        return original(self, optimizer, *args, **kwargs)

    method._waits_for_reductions = True  # type: ignore[attr-defined]
    return method
