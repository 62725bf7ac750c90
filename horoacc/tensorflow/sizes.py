"""The number of ranks as a number of TensorFlow's graphs, which may outlive it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc import reduction
from horoacc.process import is_elastic
from horoacc.process_sets import ProcessSet
from horoacc.tensorflow import places

__all__ = ["divided", "local_divisor", "rank_in", "size_of"]


def size_of(process_set: ProcessSet) -> Any:
    """Gives the number of ranks of a process set.

    In a graph of an elastic job it is a scalar of type int32, computed when the graph runs: the
    ranks change, and a function that was traced before goes on. Elsewhere it is an int.
    """
    if _outlived():
        return places.size_op(process_set.process_set_id or 0)
    return process_set.size() or 1


def rank_in(process_set: ProcessSet) -> Any:
    """Gives this process's rank in a process set, as `size_of` gives its size.

    Sets other than the global one end with the ranks of their epoch, and so does their number.
    """
    if _outlived() and process_set.process_set_id == 0:
        return places.rank_op()
    return process_set.rank()


def _outlived() -> bool:
    return is_elastic() and not tf.executing_eagerly()


def local_divisor(process_set: ProcessSet, scale_local_gradients: bool) -> Any:
    """As `reduction.local_divisor`, for the ranks that there are when the graph runs."""
    scales = scale_local_gradients and reduction.has_peers(process_set)
    return size_of(process_set) if scales else 1


def divided(grad: Any, divisor: Any) -> Any:
    """Divides a tensor, slices or None, integers towards zero; the type stays.

    `divisor` is an int, or a scalar of type int32.
    """
    if grad is None or (isinstance(divisor, int) and divisor == 1):
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(divided(grad.values, divisor), grad.indices, grad.dense_shape)
    quotient = grad / tf.cast(divisor, grad.dtype)
    return tf.cast(quotient, grad.dtype) if grad.dtype.is_integer else quotient
