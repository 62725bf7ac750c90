"""Batch normalisation over the batches of all ranks, as a layer of Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from horoacc import process
from horoacc.dtypes import Sum
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow.reductions import allreduce


@keras.saving.register_keras_serializable(package="horoacc")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Normalises each channel with mean and variance of the ranks' batches together.

    It is to them what `keras.layers.BatchNormalization` is to one batch. Batches may differ in
    length. In evaluation it uses the moving statistics and no collective. It needs Keras 3 on
    TensorFlow.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        """Makes the layer.

        Args:
            fused: As in Horovod; nothing but False.
            process_set: The ranks that normalise together. It is not saved with the layer.
            kwargs: As for `keras.layers.BatchNormalization`.

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
        super().__init__(**kwargs)
        self.process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> Any:
        """Gives mean and variance of each channel over the batches of all ranks."""
        if not process.entered() or (self.process_set.size() or 1) == 1:
            return super()._moments(inputs, mask)
        weights = tf.ones_like(inputs)
        if mask is not None:
            shown = tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs))
            weights = tf.cast(shown, inputs.dtype)
        axes = self._reduction_axes
        # Twice, because the difference of a mean of squares and a square of the mean loses digits.
        first = tf.stack([tf.reduce_sum(weights, axes), tf.reduce_sum(inputs * weights, axes)])
        counts, sums = tf.unstack(self._summed(first, "sums"))
        counts = tf.maximum(counts, 1)
        mean = sums / counts
        shape = [1] * len(inputs.shape)
        shape[self.axis] = inputs.shape[self.axis]
        apart = (inputs - tf.reshape(mean, shape)) * weights
        spread = self._summed(tf.reduce_sum(tf.square(apart), axes), "squares")
        return mean, spread / counts

    def _summed(self, values: Any, what: str) -> Any:
        return allreduce(values, op=Sum, name=f"{self.name}.{what}", process_set=self.process_set)
