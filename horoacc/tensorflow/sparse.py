"""Allreduce of slices: the ranks' slices are gathered, not reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import part_name
from horoacc.dtypes import Average, Sum
from horoacc.process_sets import ProcessSet
from horoacc.tensorflow import raw_ops


def allreduce_sparse(
    slices: Any,
    op: int,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces slices: those of all ranks, one after the other.

    Args:
        slices: `tf.IndexedSlices`; the ranks' may be of different rows.
        op: Average or Sum.
        scales: The factors before and after, which must be 1.
        name: The same on all ranks, or None.
        process_set: The ranks that take part.
        ignore_name_scope: As for `allreduce`.

    Returns:
        `tf.IndexedSlices` in which a row may occur more than once; they add up.

    Raises:
        NotImplementedError: Another reduction, or factors.
        tf.errors.OpError: A collective failed.
    """
    if op not in (Average, Sum):
        raise NotImplementedError("Slices can be averaged or summed, nothing else.")
    if scales != (1.0, 1.0):
        raise NotImplementedError("Slices have no prescale_factor and no postscale_factor.")
    number = raw_ops.set_id(process_set)
    (values,) = raw_ops.allgather(
        [tf.convert_to_tensor(slices.values)], part_name(name, "values"), number, False,
        ignore_name_scope,
    )  # fmt: skip
    (indices,) = raw_ops.allgather(
        [tf.convert_to_tensor(slices.indices)], part_name(name, "indices"), number, False,
        ignore_name_scope,
    )  # fmt: skip
    if op == Average:
        values = divided(values, process_set.size() or 1)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def divided(grad: Any, divisor: int) -> Any:
    """Divides, integers towards zero.

    Args:
        grad: A tensor, `tf.IndexedSlices`, or None.
        divisor: The divisor.

    Returns:
        The same of the same type.
    """
    if grad is None or divisor == 1:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(divided(grad.values, divisor), grad.indices, grad.dense_shape)
    return tf.cast(grad / divisor, grad.dtype) if grad.dtype.is_integer else grad / divisor
