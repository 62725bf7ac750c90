"""`DistributedOptimizer` for optimizers of `tf.compat.v1`; it hands those of Keras on."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc.backward_passes import check_passes
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Adasum, Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.reduction import chosen_groups
from horoacc.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer
from horoacc.tensorflow.gradient_aggregation import LocalGradientAggregation
from horoacc.tensorflow.gradient_reducer import GradientReducer, key_of
from horoacc.tensorflow.raw_ops import as_written


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer of `tf.compat.v1`: its gradients are reduced before they are applied."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None,
        use_locking: bool,
        reducer: GradientReducer,
        aggregation: LocalGradientAggregation | None,
        scale_local_gradients: bool,
    ) -> None:
        super().__init__(
            name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking
        )
        self._optimizer = optimizer
        self._reducer = reducer
        self._aggregation = aggregation
        self._scale_local_gradients = scale_local_gradients
        self._local_vars: dict[int, Any] = {}

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable on this rank: it is not reduced.

        Args:
            var: A variable that each rank has for itself.
        """
        self._local_vars[key_of(var)] = var

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes gradients as the wrapped optimizer does, and reduces them.

        Args:
            args: As for the wrapped optimizer's method.
            kwargs: The same.

        Returns:
            Pairs of a reduced gradient and its variable.

        Raises:
            tf.errors.OpError: A collective failed.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        if self._aggregation is None:
            return list(zip(self._reduced(grads, variables), variables, strict=True))
        return list(
            zip(self._aggregation.compute_gradients(grads, variables), variables, strict=True)
        )

    def _reduced(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        return self._reducer(grads, variables, self._local_vars, self._scale_local_gradients)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies reduced gradients; with several passes a step, after the last of them.

        Args:
            grads_and_vars: The pairs that `compute_gradients` returned.
            args: As for the wrapped optimizer's method.
            kwargs: The same.

        Returns:
            The result of the wrapped optimizer's method.
        """
        pairs = list(grads_and_vars)
        if self._aggregation is None:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        global_step = kwargs.get("global_step", args[0] if args else None)

        def skipped() -> Any:
            return None if global_step is None else global_step.assign_add(1).op

        return self._aggregation.apply_gradients(
            lambda: self._optimizer.apply_gradients(pairs, *args, **kwargs), skipped
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that it steps with gradients reduced over all ranks.

    Args:
        optimizer: One of `tf.compat.v1.train`, or one of Keras, which goes to
            `horoacc.tensorflow.keras.DistributedOptimizer`.
        name: The name of the new optimizer.
        use_locking: As for optimizers of `tf.compat.v1`.
        device_dense: Not used.
        device_sparse: Not used.
        compression: How to make gradients narrower while they travel.
        sparse_as_dense: Reduce `tf.IndexedSlices` as dense tensors.
        backward_passes_per_step: How many backward passes to add up before reducing.
        op: Average, Sum, Min, Max or Product; or, with `tf.compat.v1`, Adasum, with which each rank
            steps by itself and the changes of the steps are combined.
        gradient_predivide_factor: Divides by this before the sum and by `size` over it after.
        average_aggregated_gradients: Divide the sum of the passes by their number.
        num_groups: The older name of an integer `groups`.
        groups: A number of groups, or lists of variables, of which the gradients travel together.
        process_set: The ranks that train together.
        scale_local_gradients: Divide gradients of local variables by the number of ranks.

    Returns:
        The optimizer. For one of `tf.compat.v1` it has the method `register_local_var` besides.

    Raises:
        ValueError: An argument makes no sense, or this is no optimizer.
    """
    parts = chosen_groups(num_groups, groups)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if not hasattr(optimizer, "apply_gradients"):
            raise ValueError(
                "DistributedOptimizer takes an optimizer of tf.compat.v1.train or of Keras, not a "
                f"{type(optimizer).__name__}."
            )
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras.")
        # Keras takes longer to import than everything else here.
        keras = importlib.import_module("horoacc.tensorflow.keras")
        return keras.DistributedOptimizer(
            optimizer, name=name, device_dense=device_dense, device_sparse=device_sparse,
            compression=compression, sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor, op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients, groups=parts,
            process_set=process_set, scale_local_gradients=scale_local_gradients,
        )  # fmt: skip
    reducer = GradientReducer(
        "DistributedOptimizer", compression, sparse_as_dense, op, gradient_predivide_factor, parts,
        process_set,
    )  # fmt: skip
    if op == Adasum:
        if average_aggregated_gradients:
            raise ValueError("Adasum does not support average_aggregated_gradients == True")
        return _DistributedAdasumOptimizer(
            optimizer, name, use_locking, reducer, check_passes(backward_passes_per_step)
        )
    if check_passes(backward_passes_per_step) == 1:
        return _DistributedOptimizer(
            optimizer, name, use_locking, reducer, None, scale_local_gradients
        )
    wrapped: Any = None
    aggregation = LocalGradientAggregation(
        backward_passes_per_step,
        lambda grads, variables: wrapped._reduced(grads, variables),
        average_aggregated_gradients,
        sparse_as_dense,
    )
    wrapped = _DistributedOptimizer(
        optimizer, name, use_locking, reducer, aggregation, scale_local_gradients
    )
    return wrapped
