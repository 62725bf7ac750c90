"""Element types and reduction operations, with the numbers of the core."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]
"""The reductions, which all frontends export."""

# The order is csrc/base/dtype.h's.
NAMES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
NUMBERS: dict[str, int] = {name: number for number, name in enumerate(NAMES)}
INT32 = NUMBERS["int32"]

#: Horovod's numbers.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
OP_NAMES = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max",
            Product: "Product"}  # fmt: skip

_BY_NUMPY: dict[npt.DTypeLike, int] = {
    np.dtype(name): number for name, number in NUMBERS.items() if name != "bfloat16"
}


def number_of(dtype: np.dtype[Any]) -> int:
    """Finds the core's number of a NumPy type; ValueError if it has none.

    `ml_dtypes.bfloat16`, which JAX uses, counts as one.
    """
    number = _BY_NUMPY.get(dtype)
    if number is None:
        number = NUMBERS.get(dtype.name) if dtype.isnative else None
    if number is None:
        raise ValueError(f"Tensor type {dtype} is not supported; supported are {', '.join(NAMES)}.")
    return number


def numpy_dtype(number: int) -> np.dtype[Any]:
    """Gives the NumPy type of a number; bfloat16 only where `ml_dtypes` registered it."""
    return np.dtype(NAMES[number])
