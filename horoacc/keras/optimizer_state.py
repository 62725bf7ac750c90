"""The variables of an optimizer of Keras, which its first step would make."""

from __future__ import annotations

from typing import Any

from horoacc.keras import legacy


def variables_of(optimizer: Any, model: Any) -> list[Any]:
    """Gives the variables of an optimizer, or of None; made now, for a built model, if need be."""
    if optimizer is None:
        return []
    make_variables(optimizer, model)
    if legacy.is_legacy(optimizer):
        from horoacc.keras import legacy_optimizer  # noqa: PLC0415 - only where TensorFlow is

        return legacy_optimizer.variables_of(optimizer)
    return list(optimizer.variables)


def make_variables(optimizer: Any, model: Any) -> None:
    """Makes the variables of an optimizer, for a built model, if it has none yet."""
    if legacy.is_legacy(optimizer):
        from horoacc.keras import legacy_optimizer  # noqa: PLC0415 - only where TensorFlow is

        legacy_optimizer.build(optimizer, model.trainable_variables)
    elif not optimizer.built:
        optimizer.build(model.trainable_variables)
        optimizer.built = True
