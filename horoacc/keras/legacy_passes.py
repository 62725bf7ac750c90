"""Several backward passes a step, for optimizers of tf_keras.

Horovod counts a pass when gradients are computed; whoever computes gradients without the optimizer
has them counted when they are applied. Both may happen in functions of their own, so a variable
says which it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc.keras import backend
from horoacc.tensorflow.gradient_aggregation import LocalGradientAggregation


class LegacyPasses(LocalGradientAggregation):
    """Counts each pass once, whether it is computed or applied first."""

    _ahead: Any = None  # a variable: gradients were computed and are not applied yet
    _trace: weakref.ref[Any] | None = None  # of a graph that computes, and may apply as well

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Counts a pass; see `LocalGradientAggregation`."""
        computed = super().compute_gradients(grads, variables)
        trace = backend.current().trace()
        self._trace = None if trace is None else weakref.ref(trace)
        self._set_ahead(True)
        return computed

    def taken(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Gives gradients to apply.

        Args:
            grads: Tensors, or None for a variable without a gradient.
            variables: Whose gradients.

        Returns:
            The given ones if they were computed here or are made of such; otherwise what
            `compute_gradients` makes of them.
        """
        trace, noted, self._trace = backend.current().trace(), self._trace, None
        if trace is not None and noted is not None and noted() is trace:
            taken = list(grads)
        elif not keeps_order():
            taken = super().compute_gradients(grads, variables)
        else:
            taken = self._chosen(grads, variables)
        self._set_ahead(False)
        return taken

    def _chosen(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """As `taken`, by the variable."""
        taken = list(grads)
        there = [index for index, grad in enumerate(grads) if grad is not None]
        compute = super().compute_gradients

        def as_given() -> list[Any]:
            return [tf.identity(self._dense(grads[index])) for index in there]

        def counted() -> list[Any]:
            computed = compute(grads, variables)
            return [computed[index] for index in there]

        self._set_up()
        results = tf.cond(self._ahead, as_given, counted)
        for index, result in zip(there, results, strict=True):
            taken[index] = result
        return taken

    def taken_as_they_are(self) -> None:
        """Says that gradients are going to be applied as the caller gives them."""
        self._trace = None
        self._set_up()
        self._set_ahead(False)

    def restart(self) -> None:
        """Begins a step: no pass of it has been counted."""
        super().restart()
        if self._ahead is not None:
            self._ahead.assign(False)

    def _set_up(self) -> None:
        self._prepare((), (), ())
        if self._ahead is None and keeps_order():
            with tf.init_scope():
                self._ahead = tf.Variable(False, trainable=False, name="ahead")

    def _set_ahead(self, ahead: bool) -> None:
        self._set_up()
        if keeps_order():
            self._ahead.assign(ahead)


def keeps_order() -> bool:
    """Says whether assignments keep the order of the program: not in graphs of TensorFlow 1."""
    return bool(tf.executing_eagerly() or tf.inside_function())
