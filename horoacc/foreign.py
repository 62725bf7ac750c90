"""Arrays of other libraries: taken as NumPy views, given back in the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def as_array(tensor: Any) -> Array:
    """Views an array of another library with NumPy, without a copy where it can.

    The array may be strided or read-only. ValueError if the CPU cannot read its memory.
    """
    if not hasattr(tensor, "__dlpack__"):
        return np.asarray(tensor)
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError) as error:
        # NumPy refuses types that it has no name for, but JAX's bfloat16 brings its own.
        if hasattr(tensor, "__array__"):
            return np.asarray(tensor)
        kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
        raise ValueError(f"The CPU cannot read this {kind}: {error}") from error


def restorer(tensor: Any) -> Callable[[Array], Any] | None:
    """Finds how to turn a NumPy array into the kind of array that the caller passed.

    None, so that the caller gets a NumPy array, for a tensor without `__dlpack__`, and for
    libraries that cannot take an array over.
    """
    if not hasattr(tensor, "__dlpack__"):
        return None
    if hasattr(tensor, "__array_namespace__"):
        library: Any = tensor.__array_namespace__()
    else:
        library = sys.modules.get(type(tensor).__module__.partition(".")[0])
    ways = [
        way for way in (getattr(library, "from_dlpack", None), getattr(library, "asarray", None))
        if way is not None
    ]  # fmt: skip
    return None if not ways else lambda array: _try(ways, array)


def _try(ways: list[Callable[[Array], Any]], array: Array) -> Any:
    for way in ways:
        try:
            return way(array)
        except (BufferError, RuntimeError, TypeError):
            continue
    return array
