"""Allreduce of slices: the ranks' slices are gathered, not reduced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import part_name
from horoacc.dtypes import Average, Sum
from horoacc.process_sets import ProcessSet
from horoacc.tensorflow import raw_ops
from horoacc.tensorflow.sizes import divided, size_of


def allreduce_sparse(
    slices: Any,
    op: int,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces `tf.IndexedSlices` to those of all ranks, one after the other.

    The ranks' may be of different rows. In the result a row may occur more than once; they add up.
    NotImplementedError for factors, and for another reduction than Average and Sum.
    """
    if op not in (Average, Sum):
        raise NotImplementedError("Slices can be averaged or summed, nothing else.")
    if scales != (1.0, 1.0):
        raise NotImplementedError("Slices have no prescale_factor and no postscale_factor.")
    number = raw_ops.set_id(process_set)
    values, indices = (
        raw_ops.each(
            "allgather", [tf.convert_to_tensor(getattr(slices, part))], part_name(name, part),
            number, False, ignore_name_scope,
        )[0]
        for part in ("values", "indices")
    )  # fmt: skip
    if op == Average:
        values = divided(values, size_of(process_set))
    return tf.IndexedSlices(values, indices, slices.dense_shape)
