"""Mixed precision: the ranks must agree about overflow, or some would step and others not.

`LossScaleOptimizer.apply` looks for infinities before it calls the optimizer inside, and
`model.compile` puts it around an optimizer that is distributed already. Gradients are reduced
before it looks; the ranks tell each other whether their local gradients are finite.
"""

from __future__ import annotations

import functools
from typing import Any

import keras


def teach_loss_scaling() -> None:
    """Makes Keras' LossScaleOptimizer heed a distributed optimizer inside. Once is enough."""
    scaler: Any = keras.optimizers.LossScaleOptimizer
    if not hasattr(scaler.apply, "_heeds_distributed_optimizers"):
        scaler.apply = _heeding_apply(scaler.apply)


def _heeding_apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not hasattr(inner, "_apply_reduced"):
            original(self, grads, trainable_variables)
            return
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        inner._reduction.agree_on_overflow()
        inner._apply_reduced(list(grads), variables, functools.partial(original, self))

    apply._heeds_distributed_optimizers = True  # type: ignore[attr-defined]
    return apply
