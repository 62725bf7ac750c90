"""Adds up the gradients of several backward passes before they are reduced once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from horoacc.backward_passes import Passes
from horoacc.tensorflow.gradient_reducer import key_of


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
        self._sums: dict[int, Any] = {}
        self._seen: set[int] = set()  # variables with a gradient in this step, in eager calls
        self._due: Any = None

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Takes the gradients of a pass.

        Args:
            grads: Tensors, or None for a variable without a gradient in this pass.
            variables: Whose gradients.

        Returns:
            With the last pass of a step the reduced sums, otherwise the sums so far, with which
            `apply_gradients` does nothing. None for a variable without a gradient in this step.

        Raises:
            ValueError: Slices were given that may not be made dense.
        """
        dense = [self._dense(grad) for grad in grads]
        keys = [key_of(variable) for variable in variables]
        self._prepare(keys, dense, variables)
        known = [index for index, key in enumerate(keys) if key in self._sums]
        before = self.counter.read_value()
        summed = {
            index: self._passes.added(before, total, grad, tf.where)
            for index, total, grad in self._pairs(known, keys, dense)
        }
        kept = [
            self._sums[keys[index]].assign(value, read_value=False)
            for index, value in summed.items()
        ]
        kept.append(self.counter.assign(self._passes.after(before), read_value=False))
        with after(kept):
            self._due = tf.equal(self.counter.read_value(), 0)
        seen = {key for key, grad in zip(keys, dense, strict=True) if grad is not None}
        if tf.executing_eagerly():
            seen |= self._seen
            self._seen = set() if self._due else seen
        given = [index for index in known if keys[index] in seen]
        chosen, totals = [variables[index] for index in given], [summed[index] for index in given]
        results = tf.cond(self._due, lambda: self._finish(totals, chosen), lambda: totals)
        for index, result in zip(given, results, strict=True):
            dense[index] = result
        return dense

    def _prepare(self, keys: Sequence[int], grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Makes the count, and the sums that are needed for the first time."""
        with tf.init_scope():
            if self.counter is None:
                self.counter = _local("aggregation_counter", tf.zeros([], tf.int32))
            for key, grad, variable in zip(keys, grads, variables, strict=True):
                if grad is not None and key not in self._sums:
                    name = f"aggregated_gradient_{len(self._sums)}"
                    self._sums[key] = _local(name, tf.zeros(variable.shape, grad.dtype))

    def _pairs(
        self, known: Sequence[int], keys: Sequence[int], grads: Sequence[Any]
    ) -> Iterator[tuple[int, Any, Any]]:
        """Gives places with the sum so far and the gradient to add, zeros where there is none."""
        for index in known:
            total = self._sums[keys[index]].read_value()
            yield index, total, tf.zeros_like(total) if grads[index] is None else grads[index]

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
            return apply() if self._ended() else skipped()
        return tf.cond(self._ended(), run(apply), run(skipped))

    def _ended(self) -> Any:
        """Says whether the last pass was the last of its step, or there was none."""
        if self.counter is None:
            return tf.constant(True)
        # Functions keep the order of reading and assigning by themselves, other graphs do not.
        if tf.executing_eagerly() or tf.inside_function():
            return tf.equal(self.counter.read_value(), 0)
        return self._due

    def restart(self) -> None:
        """Begins a step: no pass of it has been counted."""
        if self.counter is not None:
            self.counter.assign(0)
        self._seen.clear()

    def _dense(self, grad: Any) -> Any:
        """Gives a gradient as it is added up; ValueError for slices that may not be made dense."""
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
