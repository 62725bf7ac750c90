"""What a rank cannot call, told to the ranks that do; see `horoacc.complaints`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from horoacc.calls import COLLECTIVE_NAMES, member_names
from horoacc.complaints import complain
from horoacc.process_sets import ProcessSet


@contextlib.contextmanager
def complaining(
    collective: int, name: str | None, process_set: ProcessSet, count: int | None = None
) -> Iterator[None]:
    """As `horoacc.complaints.complaining`, for calls that are made now and not by a graph.

    Args:
        collective: A number of `ha_collective`.
        name: What the caller calls it.
        process_set: The ranks that take part.
        count: The number of tensors of a grouped call.
    """
    try:
        yield
    except Exception as error:
        if tf.executing_eagerly():
            first = member_names(COLLECTIVE_NAMES[collective], name, count)[0]
            complain(error, collective, first, process_set, count is not None and count > 1)
        raise


def tensor_of(value: Any) -> Any:
    """Makes a tensor of what a caller has.

    Args:
        value: A tensor, a variable, or what TensorFlow makes a tensor of.

    Returns:
        The tensor.

    Raises:
        TypeError: It is none, and no tensor can be made of it.
        ValueError: The same.
    """
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        part = "flat_values" if isinstance(value, tf.RaggedTensor) else "values"
        raise TypeError(
            f"A {type(value).__name__} has no shape that all ranks could share: give its parts, "
            f"such as .{part}, or what to_tensor() or tf.sparse.to_dense() makes of it."
        )
    return tf.convert_to_tensor(value)
