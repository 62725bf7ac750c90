"""What collectives must give, computed with NumPy by each rank for itself.

Every rank can make every rank's input (`values`), so nothing of what is tested is needed to know
the result. Reductions follow the definition of the canonical order: the balanced binary tree over
ranks, 16-bit floats accumulated in float32 and rounded once. Factors of floats are rounded to their
accumulator's type, each product with the factor before the sum to the type; those of integers are
applied in float64.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

AVERAGE, SUM, MIN, MAX, PRODUCT = 0, 1, 3, 4, 5
OPS = {"average": AVERAGE, "sum": SUM, "min": MIN, "max": MAX, "product": PRODUCT}
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
REALS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *INTEGERS, *REALS, *COMPLEX)


def has_meaning(dtype: str, op: int) -> bool:
    """Whether the reduction exists for the type."""
    if dtype == "bool":
        return op != AVERAGE
    return not (dtype in COMPLEX and op in (MIN, MAX))


def values(dtype: str, shape: Sequence[int], rank: int, label: str) -> Array:
    """Makes a rank's input; the label makes it differ from other calls'."""
    rng = np.random.default_rng([zlib.crc32(label.encode()), rank])
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(max(info.min, -100), min(info.max, 100), shape), dtype)
    if dtype in COMPLEX:
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype)
    return np.asarray(rng.standard_normal(shape), dtype)


def truncate(x: Array) -> Array:
    """Cuts float64 to int64, saturating."""
    whole = np.trunc(x)
    big = whole >= 2.0**63
    small = whole <= -(2.0**63)
    kept = np.where(big | small | np.isnan(whole), 0.0, whole).astype(np.int64)
    limits = np.iinfo(np.int64)
    return np.where(big, limits.max, np.where(small, limits.min, kept))


def tree(parts: Sequence[Array], join: Callable[[Array, Array], Array]) -> Array:
    """Joins the ranks' parts along the balanced tree: left is the largest power of two below."""
    if len(parts) == 1:
        return parts[0]
    left = 1
    while 2 * left < len(parts):
        left *= 2
    return join(tree(parts[:left], join), tree(parts[left:], join))


def joiner(op: int) -> Callable[[Array, Array], Array]:
    """The operation on two accumulators."""
    if op == PRODUCT:
        return _product
    return {AVERAGE: np.add, SUM: np.add, MIN: _min, MAX: _max}[op]


def _min(a: Array, b: Array) -> Array:
    # A NaN wins; of equal values (-0 and +0) the lower rank's stays.
    return np.where((b < a) | (b != b), b, a)


def _max(a: Array, b: Array) -> Array:
    return np.where((b > a) | (b != b), b, a)


def _product(a: Array, b: Array) -> Array:
    if not np.iscomplexobj(a):
        return np.multiply(a, b)
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def reduce(inputs: Sequence[Array], op: int, pre: float = 1.0, post: float = 1.0) -> Array:
    """Reduces the ranks' inputs."""
    # NumPy makes scalars of arrays without dimensions.
    return np.asarray(_reduce(inputs, op, pre, post))


def _reduce(inputs: Sequence[Array], op: int, pre: float, post: float) -> Any:
    dtype = inputs[0].dtype
    divisor = float(len(inputs)) if op == AVERAGE else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.kind == "b":
            wanted = np.all if op in (MIN, PRODUCT) else np.any
            return np.asarray(wanted(np.stack(inputs), axis=0))
        if dtype.kind in "iu":
            leaves = [
                x.astype(np.int64) if pre == 1.0 else truncate(x * np.float64(pre)) for x in inputs
            ]
            total = tree(leaves, joiner(op))
            if post == 1.0:
                whole = int(divisor)
                total = np.sign(total) * (np.abs(total) // whole)
            else:
                total = truncate(total.astype(np.float64) * post / divisor)
            return total.astype(dtype)
        wide = np.float64 if dtype in (np.float64, np.complex128) else np.float32
        before, after = wide(pre), wide(post / divisor)
        if dtype.kind == "c":
            total = tree([_by_parts(x, lambda y: y * before) for x in inputs], joiner(op))
            return _by_parts(total, lambda y: y * after)
        leaves = [(x.astype(wide) * before).astype(dtype).astype(wide) for x in inputs]
        return (tree(leaves, joiner(op)) * after).astype(dtype)


def _by_parts(x: Array, change: Callable[[Array], Array]) -> Array:
    result = np.empty_like(x)
    result.real = change(np.ascontiguousarray(x.real))
    result.imag = change(np.ascontiguousarray(x.imag))
    return result


def rows_of(rows: int, rank: int, size: int) -> slice:
    """A rank's part of a reduce-scatter: the first `rows % size` ranks get one row more."""
    base, more = divmod(rows, size)
    begin = rank * base + min(rank, more)
    return slice(begin, begin + base + (1 if rank < more else 0))


def same_bits(got: Any, wanted: Array, what: str) -> None:
    """Fails unless type, shape and every bit agree."""
    got = np.asarray(got)
    assert got.dtype == wanted.dtype, f"{what}: type {got.dtype}, not {wanted.dtype}"
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    if got.tobytes() != np.ascontiguousarray(wanted).tobytes():
        differ = np.flatnonzero(
            [a.tobytes() != b.tobytes() for a, b in zip(got.ravel(), wanted.ravel(), strict=True)]
        )
        at = int(differ[0]) if differ.size else -1
        raise AssertionError(
            f"{what}: {differ.size} of {got.size} elements differ, the first at {at}: "
            f"{got.ravel()[at]!r} instead of {wanted.ravel()[at]!r}"
        )


def _combined(a: Array, b: Array) -> Array:
    dot, a_square, b_square = (a * b).sum(), (a * a).sum(), (b * b).sum()
    a_factor = 1 - dot / (2 * a_square) if a_square > 0 else 1.0
    b_factor = 1 - dot / (2 * b_square) if b_square > 0 else 1.0
    return a_factor * a + b_factor * b


def adasum(vectors: Sequence[Array]) -> Array:
    """Adasum's formula, on vectors of float64 that are really combined."""
    if len(vectors) == 1:
        return vectors[0]
    middle = 1
    while middle * 2 < len(vectors):
        middle *= 2
    return _combined(adasum(vectors[:middle]), adasum(vectors[middle:]))
