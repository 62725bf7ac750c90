"""Which gradients of a graph are reduced by one op.

An op costs what its crossings between threads cost, and a call of the core, whatever the size of
its tensors. So small gradients share one, and none of them travels before all are there; larger
ones travel by themselves as soon as they are, while others are still computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc import dtypes
from horoacc.compression import Compressor, NoneCompressor

# Constants, and what is plain does not depend on devices: the ranks' graphs must have the same ops.
LARGEST_MEMBER = 256 << 10
"""Bytes; more are not copied to shared memory, from where the bucket's other gradients travel."""
LARGEST_BUCKET = 1 << 20
"""Bytes; of a model with more, some travel while others are still computed."""

_ELEMENTWISE = (dtypes.Average, dtypes.Sum, dtypes.Min, dtypes.Max, dtypes.Product)


def buckets(gradients: Sequence[Any], op: int, compression: type[Compressor]) -> list[list[int]]:
    """Parts the places of gradients, of which each one is reduced by itself or with others.

    Args:
        gradients: A graph's tensors and `tf.IndexedSlices`, alike on all ranks.
        op: The reduction.
        compression: How they are made narrower.

    Returns:
        The places, of which those of a part are reduced as one unit. What is not plain is alone:
        slices, shapes that are not known, compressed gradients, Adasum.
    """
    plain = compression is NoneCompressor and op in _ELEMENTWISE
    parts: list[list[int]] = []
    bucket: list[int] = []
    filled = LARGEST_BUCKET
    for place, gradient in enumerate(gradients):
        size = _bytes_of(gradient) if plain else None
        if size is None or size > LARGEST_MEMBER:
            parts.append([place])
            continue
        filled += size
        if filled > LARGEST_BUCKET:
            bucket, filled = [], size
            parts.append(bucket)
        bucket.append(place)
    return parts


def _bytes_of(gradient: Any) -> int | None:
    if isinstance(gradient, tf.IndexedSlices) or not gradient.shape.is_fully_defined():
        return None
    return int(gradient.shape.num_elements()) * int(gradient.dtype.size)
