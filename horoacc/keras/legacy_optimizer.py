"""Distributed optimizers of the legacy package `tf_keras`.

Both of its kinds of optimizers have one method that aggregates gradients before they clip and
step, and its loss-scaling optimizers call that of the one inside before they look for overflow. So
this method is overridden. `horoacc.keras.gradients` reduces, as for Keras 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horoacc.keras import compilation
from horoacc.keras.gradients import (
    GradientReduction,
    Options,
    ReducesGradients,
    derived_class,
)
from horoacc.keras.legacy import schedule_of

_STEP_WITH_THESE = {"experimental_aggregate_gradients": False}
"""Both kinds take this, and step with the gradients that they are given."""


class _Start:
    """The state that a copy begins with: the given one's, once the copy knows its variables.

    An object of its own, because optimizers track their lists.
    """

    def __init__(self, optimizer: Any) -> None:
        self._values: Sequence[Any] = [variable.numpy() for variable in variables_of(optimizer)]

    def give(self, copied: Any) -> None:
        """Gives the copy the values for which it has variables by now."""
        variables = variables_of(copied)
        for variable, value in zip(variables, self._values, strict=False):
            variable.assign(value)
        if len(variables) >= len(self._values):
            self._values = ()


class _DistributedLegacyOptimizer(ReducesGradients):
    """Mixed in before the class of an optimizer of tf_keras."""

    _start: _Start

    def _aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> list[Any]:
        """Gives pairs with reduced gradients; ValueError under XLA, or for more passes than one."""
        if self._reduction.passes > 1:
            raise ValueError(
                "backward_passes_per_step cannot be combined with loss scaling of tf_keras: it "
                "looks for overflow in each pass, of which the other ranks would not know. Use "
                "Keras 3, or one pass a step."
            )
        grads, variables = _parted(grads_and_vars)
        return list(zip(self._allreduce(grads, variables), variables, strict=True))

    def _allreduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if self._reduction.reduces():
            compilation.refuse_xla()
        return self._reduction.reduce(list(grads), list(variables))

    def apply_gradients(self, grads_and_vars: Iterable[Any], name: str | None = None,
                        **how: Any) -> Any:  # fmt: skip
        """Reduces gradients and steps with them, if this pass is the last of a step.

        Args:
            grads_and_vars: Pairs of gradient and variable.
            name: As for the given optimizer.
            how: The same; `skip_gradients_aggregation=True` or
                `experimental_aggregate_gradients=False` for gradients that are reduced already.

        Returns:
            The result of the given optimizer's method; the count of iterations if several passes
            make a step.
        """
        apply = super().apply_gradients  # type: ignore[misc]
        reduced_already = how.get("skip_gradients_aggregation", False) or not how.get(
            "experimental_aggregate_gradients", True
        )
        if self._reduction.passes == 1 or reduced_already:
            return apply(grads_and_vars, name, **how)
        grads, variables = _parted(grads_and_vars)
        with tf.init_scope():
            self._reduction.build(variables)
        if self._reduction.reduces():
            compilation.refuse_xla()

        def step(reduced: Sequence[Any]) -> None:
            apply(list(zip(reduced, variables, strict=True)), name, **_STEP_WITH_THESE)

        self._reduction.apply(grads, variables, step)
        return self.iterations  # type: ignore[attr-defined]


class _DistributedNew(_DistributedLegacyOptimizer):
    """Of optimizers in `tf_keras.optimizers`."""

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the optimizer's variables."""
        super().build(var_list)  # type: ignore[misc]
        self._start.give(self)

    def aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> list[Any]:
        """Gives pairs with reduced gradients; tf_keras calls it."""
        return self._aggregate_gradients(grads_and_vars)


class _DistributedOld(_DistributedLegacyOptimizer):
    """Of optimizers in `tf_keras.optimizers.legacy`, which call `_aggregate_gradients`."""

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        super()._create_all_weights(var_list)  # type: ignore[misc]
        self._start.give(self)


def variables_of(optimizer: Any) -> list[Any]:
    """Gives the variables, as far as there are any: a list for one kind, for the other a method."""
    own = optimizer.variables
    return list(own() if callable(own) else own)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes an optimizer's variables, as its first step would; if it has them, nothing."""
    with tf.init_scope():
        if hasattr(optimizer, "_create_all_weights"):
            optimizer._create_all_weights(variables)
        else:
            optimizer.build(variables)


def distribute(optimizer: Any, options: Options) -> Any:
    """Makes a distributed optimizer of a class that derives from the given one's and has its name.

    Of an optimizer that scales losses, the one inside becomes distributed.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        scaling = {
            name: value for name, value in optimizer.get_config().items()
            if name in ("dynamic", "initial_scale", "dynamic_growth_steps")
        }  # fmt: skip
        distributed = distribute(inner, options)
        distributed._reduction.agree_on_overflow()
        return type(optimizer)(distributed, **scaling)
    config = dict(optimizer.get_config())
    # Objects without state are shared: a user's schedule may have no name to look up.
    schedule = schedule_of(optimizer)
    if schedule is not None:
        config["learning_rate"] = schedule
    reduction = GradientReduction(options, id)
    base: Any = type(optimizer)
    mixed_in = _DistributedOld if hasattr(base, "_create_all_weights") else _DistributedNew
    copied = derived_class(mixed_in, base).from_config(config)
    copied._reduction = reduction
    copied._start = _Start(optimizer)
    copied._start.give(copied)
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, value)
    return copied


def _parted(grads_and_vars: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
