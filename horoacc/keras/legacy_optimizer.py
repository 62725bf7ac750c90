"""Distributed optimizers of the legacy package `tf_keras`.

`minimize`, which `fit` calls, computes gradients and applies them. As in Horovod they are reduced
when they are computed; those that somebody else has computed, when they are applied: both kinds of
optimizers have one method that aggregates gradients before they clip and step, and loss-scaling
optimizers call that of the one inside before they look for overflow. `horoacc.keras.gradients`
reduces, as for Keras 3.
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
from horoacc.keras.legacy_passes import LegacyPasses, keeps_order

_STEP_WITH_THESE = {"experimental_aggregate_gradients": False}
"""Both kinds take this, and step with the gradients that they are given."""
_SCALED = (
    "backward_passes_per_step cannot be combined with loss scaling of tf_keras: it looks for "
    "overflow in each pass, of which the other ranks would not know. Use Keras 3, or one pass a "
    "step."
)


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
    _passes: LegacyPasses | None
    _applies = False

    @property
    def _accumulation(self) -> LegacyPasses | None:
        """What adds up several passes; None if each is a step."""
        return self._passes

    def _like_it(self, config: dict[str, Any]) -> Any:
        return distribute(self.__class__.from_config(config), self._reduction.options)  # type: ignore[attr-defined]

    def _begin_step(self) -> None:
        super()._begin_step()
        if self._passes is not None:
            self._passes.restart()

    def _aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> list[Any]:
        """Gives pairs with reduced gradients, or with their sums so far if they are not due yet.

        The given optimizer calls it in each step, loss scaling before it: gradients that were
        reduced when they were computed stay as they are.

        Raises:
            ValueError: XLA compiles the caller, or losses are scaled and several passes are a step.
        """
        grads, variables = _parted(grads_and_vars)
        ahead = self._reduction.ahead
        if self._reduction.steps:
            reduced = grads
        elif self._passes is None and ahead.covers(grads):
            reduced = grads
            ahead.note(reduced)
        else:
            reduced = self._allreduce(grads, variables)
        return list(zip(reduced, variables, strict=True))

    def _allreduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients ahead of `apply_gradients`; see `_aggregate_gradients`."""
        self._check()
        if self._passes is not None:
            return self._passes.compute_gradients(grads, variables)
        reduced = self._reduction.reduce(grads, variables)
        if not self._applies:
            self._reduction.ahead.note(reduced)
        return reduced

    def _check(self) -> None:
        if self._reduction.reduces():
            compilation.refuse_xla()
        if self._passes is not None and getattr(self, "_is_wrapped_by_loss_scale_optimizer", False):
            raise ValueError(_SCALED)

    def apply_gradients(self, grads_and_vars: Iterable[Any], name: str | None = None,
                        **how: Any) -> Any:  # fmt: skip
        """Reduces gradients, unless they are reduced, and steps if this pass is the last of a step.

        Args:
            grads_and_vars: Pairs of gradient and variable. Gradients that this optimizer has
                computed are reduced, and so are those that were made of such.
            name: As for the given optimizer.
            how: The same; `skip_gradients_aggregation=True` or
                `experimental_aggregate_gradients=False` for gradients that are reduced already.

        Returns:
            The result of the given optimizer's method; the count of iterations if several passes
            make a step. It counts passes, as in Horovod.
        """
        pairs = list(grads_and_vars)
        reduced_already = how.get("skip_gradients_aggregation", False) or not how.get(
            "experimental_aggregate_gradients", True
        )
        if self._passes is not None:
            return self._apply_pass(self._passes, pairs, name, reduced_already)
        apply = super().apply_gradients  # type: ignore[misc]
        ahead = self._reduction.ahead
        if reduced_already:
            ahead.take()
        elif not ahead.covers([gradient for gradient, _ in pairs]):
            self._applies = True
            try:
                return apply(pairs, name, **how)  # which calls _aggregate_gradients
            finally:
                self._applies = False
        with self._reduction.leaving_as_they_are():
            return apply(pairs, name, **how)

    def _apply_pass(
        self, passes: LegacyPasses, pairs: list[Any], name: str | None, reduced_already: bool
    ) -> Any:
        apply = super().apply_gradients  # type: ignore[misc]
        grads, variables = _parted(pairs)
        with tf.init_scope():
            iterations = self.iterations  # type: ignore[attr-defined]
            build(self, [one for one, grad in zip(variables, grads, strict=True)
                         if grad is not None])  # fmt: skip
        self._check()
        if reduced_already:
            passes.taken_as_they_are()
        else:
            grads = passes.taken(grads, variables)

        ordered = keeps_order()

        def step() -> Any:
            with self._reduction.leaving_as_they_are():
                done = apply(list(zip(grads, variables, strict=True)), name, **_STEP_WITH_THESE)
            return None if ordered else getattr(done, "op", done)

        def count() -> Any:
            done = iterations.assign_add(1, read_value=False)
            return None if ordered else done

        done = passes.apply_gradients(step, count)
        return iterations if ordered else done

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Computes reduced gradients, for `apply_gradients`.

        Args:
            loss: The loss, or a function that computes it.
            var_list: The variables, or a function that gives them.
            tape: The tape that has recorded the loss; needed if it is no function.

        Returns:
            Pairs of gradient and variable. If several passes make a step, gradients are the sums of
            this rank until the last of them.
        """
        return self._compute_gradients(loss, var_list, tape=tape)

    def _reduced(self, pairs: Sequence[Any]) -> list[Any]:
        grads, variables = _parted(pairs)
        return list(zip(self._allreduce(grads, variables), variables, strict=True))

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None,
                           tape: Any = None) -> list[Any]:  # fmt: skip
        """As `compute_gradients`; `grad_loss` is the loss's gradient."""
        raise NotImplementedError


class _DistributedNew(_DistributedLegacyOptimizer):
    """Of optimizers in `tf_keras.optimizers`."""

    def build(self, var_list: Sequence[Any]) -> None:
        """Makes the optimizer's variables."""
        super().build(var_list)  # type: ignore[misc]
        self._start.give(self)

    def aggregate_gradients(self, grads_and_vars: Iterable[Any]) -> list[Any]:
        """Gives pairs with reduced gradients; tf_keras calls it."""
        return self._aggregate_gradients(grads_and_vars)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None,
                           tape: Any = None) -> list[Any]:  # fmt: skip
        if grad_loss is not None:
            raise ValueError("grad_loss is for optimizers of tf_keras.optimizers.legacy.")
        compute = super(_DistributedLegacyOptimizer, self).compute_gradients  # type: ignore[misc]
        return self._reduced(compute(loss, var_list, tape))


class _DistributedOld(_DistributedLegacyOptimizer):
    """Of optimizers in `tf_keras.optimizers.legacy`, which call `_aggregate_gradients`."""

    def _create_all_weights(self, var_list: Sequence[Any]) -> None:
        super()._create_all_weights(var_list)  # type: ignore[misc]
        self._start.give(self)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None,
                           tape: Any = None) -> list[Any]:  # fmt: skip
        compute = super(_DistributedLegacyOptimizer, self)._compute_gradients  # type: ignore[misc]
        return self._reduced(compute(loss, var_list, grad_loss, tape))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Gives reduced gradients in a graph of TensorFlow 1, as `get_updates` of Keras takes them.

        Args:
            loss: The loss.
            params: A variable, or a structure of them.

        Returns:
            A gradient for each.
        """
        grads = super().get_gradients(loss, params)  # type: ignore[misc]
        return self._allreduce(grads, tf.nest.flatten(params))


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
        if distributed._passes is not None:
            raise ValueError(_SCALED)
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
    copied._passes = None
    if reduction.passes > 1:
        copied._passes = LegacyPasses(
            reduction.passes, reduction.reduce, options.average_aggregated_gradients, True
        )
    copied._start = _Start(optimizer)
    copied._start.give(copied)
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(copied, name, value)
    return copied


def _parted(grads_and_vars: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
