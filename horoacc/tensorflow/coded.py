"""Allreduce of tensors that travel encoded; NumPy encodes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horoacc.collectives import coded_allreduce
from horoacc.collectives.numpy_tensors import numpy_tensors
from horoacc.process_sets import ProcessSet


def allreduce_coded(
    tensors: Sequence[Any],
    codec: Any,
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
) -> list[Any]:
    """Reduces floating-point tensors with a codec; in a graph, Python is called when it runs."""

    def reduce(*arrays: Any) -> list[Any]:
        wide = [np.asarray(array, np.float32) for array in arrays]
        reduced = coded_allreduce.allreduce_coded(
            lambda _: numpy_tensors, wide, codec, name, op, None, scales, process_set
        )
        assert reduced is not None
        return reduced

    narrow = [tf.cast(tensor, tf.float32) for tensor in tensors]
    if tf.executing_eagerly():
        results = [tf.constant(array) for array in reduce(*(tensor.numpy() for tensor in narrow))]
    else:
        results = tf.numpy_function(reduce, narrow, [tf.float32] * len(narrow), stateful=True)
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return [tf.cast(result, like.dtype) for result, like in zip(results, tensors, strict=True)]
