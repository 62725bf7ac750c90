"""Tells the other ranks of a call that this rank cannot make.

See `horoacc.collectives.validation_errors`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import COLLECTIVE_NAMES, member_names
from horoacc.collectives.validation_errors import send_validation_error
from horoacc.process_sets import ProcessSet


@contextlib.contextmanager
def validating(
    collective: int, name: str | None, process_set: ProcessSet, count: int | None = None
) -> Iterator[None]:
    """Sends a validation error if the block of an eager call raises; `count` is that of a group."""
    try:
        yield
    except Exception as error:
        if tf.executing_eagerly():
            first = member_names(COLLECTIVE_NAMES[collective], name, count)[0]
            grouped = count is not None and count > 1
            send_validation_error(error, collective, first, process_set, grouped)
        raise


def tensor_of(value: Any) -> Any:
    """Makes a tensor of a caller's value; TypeError or ValueError if none can be made of it."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        part = "flat_values" if isinstance(value, tf.RaggedTensor) else "values"
        raise TypeError(
            f"A {type(value).__name__} has no shape that all ranks could share: give its parts, "
            f"such as .{part}, or what to_tensor() or tf.sparse.to_dense() makes of it."
        )
    return tf.convert_to_tensor(value)
