"""Adds up the gradients of several backward passes before they are reduced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horoacc.backward_passes import Passes


class LocalGradientAggregation:
    """Sums of gradients, in variables of this rank, and the count of backward passes.

    In a TF1-style graph the variables are local ones: they have to be initialised by
    `tf.compat.v1.local_variables_initializer()`, as monitored sessions do it.

    Attributes:
        counter: How many passes the sums hold; made with the first gradients.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], Sequence[Any]], list[Any]],
        average_aggregated_gradients: bool = False,
        sparse_as_dense: bool = False,
    ) -> None:
        """Prepares.

        Args:
            backward_passes_per_step: How many passes to add up.
            allreduce_func: Reduces a list of gradients, given their variables.
            average_aggregated_gradients: Divide the sums by the number of passes.
            sparse_as_dense: Add up `tf.IndexedSlices` as dense tensors.

        Raises:
            ValueError: The number of passes is not a positive integer.
        """
        self._passes = Passes(backward_passes_per_step, average_aggregated_gradients)
        self.counter: Any = None
        self._reduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._sums: list[Any] = []
        self._due: Any = None

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Takes the gradients of a pass.

        Args:
            grads: Tensors, or None for a variable without a gradient: in every pass.
            variables: Whose gradients.

        Returns:
            With the last pass of a step the reduced sums, otherwise the sums so far, with which
            `apply_gradients` does nothing.

        Raises:
            ValueError: Slices were given that may not be made dense.
        """
        dense = [self._dense(grad) for grad in grads]
        there = [index for index, grad in enumerate(dense) if grad is not None]
        if self.counter is None:
            with tf.init_scope():
                self.counter = _local("aggregation_counter", tf.zeros([], tf.int32))
                self._sums = [
                    _local(
                        f"aggregated_gradient_{index}",
                        tf.zeros(dense[index].shape, dense[index].dtype),
                    )
                    for index in there
                ]
        before = self.counter.read_value()
        due = self._passes.due(before)
        summed = [
            self._passes.added(before, variable.read_value(), dense[index], tf.where)
            for variable, index in zip(self._sums, there, strict=True)
        ]
        kept = [
            variable.assign(value, read_value=False)
            for variable, value in zip(self._sums, summed, strict=True)
        ]
        kept.append(self.counter.assign(self._passes.after(before), read_value=False))
        chosen = [variables[index] for index in there]
        with after(kept):
            self._due = tf.identity(due)
        results = tf.cond(self._due, lambda: self._finish(summed, chosen), lambda: summed)
        for index, result in zip(there, results, strict=True):
            dense[index] = result
        return dense

    def _finish(self, summed: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces the sums."""
        totals = [self._passes.result(value) for value in summed]
        return [tf.identity(value) for value in self._reduce(totals, variables)]

    def apply_gradients(self, apply: Callable[[], Any], skipped: Callable[[], Any]) -> Any:
        """Applies the sums of a step after its last pass.

        Args:
            apply: Applies the last result of `compute_gradients`.
            skipped: Called after other passes.

        Returns:
            An operation in a graph.
        """

        def run(function: Callable[[], Any]) -> Callable[[], Any]:
            def branch() -> Any:
                done = function()
                with after([done]):
                    return tf.no_op()

            return branch

        if tf.executing_eagerly():
            return apply() if self._due else skipped()
        return tf.cond(self._due, run(apply), run(skipped))

    def _dense(self, grad: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        if not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                "`sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(grad)


def after(values: Sequence[Any]) -> Any:
    """Orders the rest of a block in a graph after tensors and operations; None stands for nothing.

    No variables: that they were assigned to is the operation which `assign(..., read_value=False)`
    gives.
    """
    return tf.control_dependencies([value for value in values if value is not None])


def _local(name: str, initial: Any) -> Any:
    if tf.executing_eagerly():
        return tf.Variable(initial, trainable=False, name=name)
    return tf.compat.v1.Variable(
        initial, trainable=False, name=name, use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip
