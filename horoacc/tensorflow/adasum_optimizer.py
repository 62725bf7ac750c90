"""Adasum of the changes of the ranks' steps, for optimizers of `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc.tensorflow.gradient_aggregation import after
from horoacc.tensorflow.gradient_reducer import GradientReducer


class _DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer: each rank steps by itself, and the steps are combined.

    Between two combinations the variables hold the values of this rank alone; `starts` has
    the last values that all ranks had in common.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reducer: GradientReducer,
        passes: int,
    ) -> None:
        super().__init__(
            name=name or f"DistributedDelta{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._reducer = reducer
        self._passes = passes
        self._starts: list[Any] = []
        self._counter: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's: gradients stay on their rank."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Steps by itself and, after as many steps as were asked for, combines with the others.

        Args:
            grads_and_vars: The pairs that `compute_gradients` returned.
            global_step: A variable that counts the steps, or None.
            name: The name of the operation.

        Returns:
            An operation in a graph.

        Raises:
            tf.errors.OpError: A collective failed.
        """
        pairs = [(grad, variable) for grad, variable in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        if self._counter is None:
            with tf.init_scope():
                self._counter = _kept("adasum_counter", tf.zeros([], tf.int32))
                self._starts = [
                    _kept(f"adasum_start_{index}", tf.zeros(variable.shape, variable.dtype))
                    for index, variable in enumerate(variables)
                ]
        # Before the first step of a round the variables are the same on all ranks.
        begins = tf.equal(self._counter.read_value(), 0)
        noted = [
            start.assign(
                tf.where(begins, variable.read_value(), start.read_value()), read_value=False
            )
            for start, variable in zip(self._starts, variables, strict=True)
        ]
        with after([begins, *noted]):
            stepped = self._optimizer.apply_gradients(pairs, global_step=global_step)
        with after([stepped]):
            counted = self._counter.assign_add(1, read_value=False)
        with after([counted]):
            due = tf.equal(self._counter.read_value(), self._passes)

        def combine() -> Any:
            deltas = [
                variable.read_value() - start.read_value()
                for variable, start in zip(variables, self._starts, strict=True)
            ]
            combined = self._reducer(deltas, variables)
            done = [
                variable.assign(start.read_value() + delta, read_value=False)
                for variable, start, delta in zip(variables, self._starts, combined, strict=True)
            ]
            done.append(self._counter.assign(0, read_value=False))
            with after(done):
                return tf.constant(True)

        if tf.executing_eagerly():
            if due:
                combine()
            return None
        with after([due]):
            ended = tf.cond(due, combine, lambda: tf.constant(False))
        return tf.group(ended, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def _kept(name: str, initial: Any) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial, trainable=False, name=name)
    return tf.compat.v1.Variable(initial, trainable=False, name=name, use_resource=True)
