"""What the tests of TensorFlow share: inputs, results and ways to make a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import tensorflow as tf

import horoacc.tensorflow as hvd

Call = Callable[..., Any]


def given(label: str, shape: tuple[int, ...] = (5, 3), dtype: str = "float64") -> list[Any]:
    """Every rank's array."""
    if dtype == "bfloat16":
        wide = given(label, shape, "float32")
        return [tf.cast(array, tf.bfloat16).numpy() for array in wide]
    return [np.array(oracle.values(dtype, shape, rank, label)) for rank in range(hvd.size())]


def wanted(arrays: list[Any], op: int, pre: float = 1.0, post: float = 1.0) -> Any:
    """Their reduction."""
    if arrays[0].dtype.name == "bfloat16":
        # Widening to float32 is exact, and the canonical order accumulates there.
        wide = oracle.reduce([array.astype(np.float32) for array in arrays], op, pre, post)
        return tf.cast(wide, tf.bfloat16).numpy()
    return np.array(oracle.reduce(arrays, op, pre, post))


def same(got: Any, array: Any) -> None:
    """The very bits."""
    found = got.numpy()
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes(), (found, array)


def in_both(call: Call) -> Iterator[Call]:
    """The call, eagerly and in a tf.function."""
    yield call
    yield tf.function(call)


@contextlib.contextmanager
def process_set() -> Iterator[hvd.ProcessSet]:
    """The even ranks."""
    if hvd.size() == 1:
        yield hvd.global_process_set
        return
    members = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    yield members
    assert hvd.remove_process_set(members)
