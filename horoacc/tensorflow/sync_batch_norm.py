"""Batch normalisation over the batches of all ranks, as a layer of `tf.keras`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from horoacc import process, reduction
from horoacc.dtypes import Sum
from horoacc.keras import legacy
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow.reductions import allreduce

# What `tf.keras` is: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS asks for it.
_LEGACY = legacy.tf_keras()
_KERAS: Any = _LEGACY or keras


@_KERAS.utils.register_keras_serializable(package="horoacc")
class SyncBatchNormalization(_KERAS.layers.BatchNormalization):  # type: ignore[misc]
    """Normalises each channel with mean and variance of the ranks' batches together.

    It is to them what `tf.keras.layers.BatchNormalization` is to one batch. Batches may differ in
    length. In evaluation it uses the moving statistics and no collective. It needs Keras on
    TensorFlow: Keras 3, or tf_keras where that is `tf.keras` when this module is imported.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        """Makes the layer.

        Args:
            fused: As in Horovod; nothing but False.
            process_set: The ranks that normalise together. It is not saved with the layer.
            kwargs: As for `tf.keras.layers.BatchNormalization`.

        Raises:
            ValueError: `fused` is True, or Keras does not run on TensorFlow.
        """
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "horoacc.tensorflow.SyncBatchNormalization needs Keras on TensorFlow, but "
                f"KERAS_BACKEND is {keras.backend.backend()}."
            )
        if _LEGACY is not None:
            kwargs["fused"] = False  # tf_keras would choose a kernel that has its own moments
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, *how: Any, **named: Any) -> Any:
        """Gives mean and variance of each channel over the batches of all ranks.

        Both kinds of Keras call it: `_moments(inputs, mask)`, and
        `_moments(inputs, reduction_axes, keep_dims, mask=None)` of tf_keras.
        """
        if not process.entered() or not reduction.has_peers(self.process_set):
            return super()._moments(inputs, *how, **named)
        if _LEGACY is None:
            (mask,) = how
            return self._over_ranks(inputs, self._reduction_axes, mask)
        axes, keep_dims = how if len(how) == 2 else (how[0], named["keep_dims"])
        mean, variance = self._over_ranks(inputs, axes, named.get("mask"))
        if keep_dims:
            return self._widened(mean, inputs, axes), self._widened(variance, inputs, axes)
        return mean, variance

    def _over_ranks(self, inputs: Any, axes: Sequence[int], mask: Any) -> tuple[Any, Any]:
        weights = tf.ones_like(inputs)
        if mask is not None:
            shown = tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs))
            weights = tf.cast(shown, inputs.dtype)
        # Twice, because the difference of a mean of squares and a square of the mean loses digits.
        first = tf.stack([tf.reduce_sum(weights, axes), tf.reduce_sum(inputs * weights, axes)])
        counts, sums = tf.unstack(self._summed(first, "sums"))
        counts = tf.maximum(counts, 1)
        mean = sums / counts
        apart = (inputs - self._widened(mean, inputs, axes)) * weights
        spread = self._summed(tf.reduce_sum(tf.square(apart), axes), "squares")
        return mean, spread / counts

    @staticmethod
    def _widened(statistic: Any, inputs: Any, axes: Sequence[int]) -> Any:
        """Gives a statistic dimensions of 1 in the places of those that were reduced."""
        reduced = {axis % len(inputs.shape) for axis in axes}
        for axis in sorted(reduced):
            statistic = tf.expand_dims(statistic, axis)
        return statistic

    def _summed(self, values: Any, what: str) -> Any:
        return allreduce(values, op=Sum, name=f"{self.name}.{what}", process_set=self.process_set)
