"""Checks and names that the collectives of all frameworks share."""

from __future__ import annotations

import operator
import warnings
from typing import Any

from horoacc import dtypes

# By ha_collective of csrc/api/horoacc.h. Not the core's own constants, so that importing this
# package does not load the core.
ALLREDUCE = 0
ALLGATHER = 1
BROADCAST = 2
ALLTOALL = 3
REDUCESCATTER = 4
BARRIER = 5
REDUCE = 6
GATHER = 7
SCATTER = 8
MONITORED_BARRIER = 9
JOIN = 10
COLLECTIVE_NAMES = (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "monitored_barrier",
    "join",
)

_RAISED_BY_AVERAGE = "The op parameter supersedes average. Please provide only one of them."


def resolve_op(op: int | None, average: bool | None) -> int:
    """Finds the reduction that a call asks for.

    Args:
        op: The reduction, or None.
        average: Horovod's older way to say it, or None.

    Returns:
        The reduction; Average if neither was given.

    Raises:
        ValueError: Both were given, or there is no such reduction.
    """
    if average is not None:
        if op is not None:
            raise ValueError(_RAISED_BY_AVERAGE)
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed.",
            DeprecationWarning,
            stacklevel=4,
        )
        op = dtypes.Average if average else dtypes.Sum
    if op is None:
        return dtypes.Average
    if op not in dtypes.OP_NAMES:
        raise ValueError(f"There is no reduction {op!r}; see hvd.Average, hvd.Sum and the others.")
    return int(op)


def check_scatter_op(op: int) -> int:
    """Checks the reduction of a reduce-scatter.

    Args:
        op: The reduction.

    Returns:
        The reduction.

    Raises:
        RuntimeError: It is neither Sum nor Average.
    """
    if op not in (dtypes.Sum, dtypes.Average):
        raise RuntimeError(
            f"Reducescatter only supports Average and Sum, not {dtypes.OP_NAMES.get(op, repr(op))}."
        )
    return int(op)


def check_root(root: Any) -> int:
    """Checks that the root of a call is a number; whether there is such a rank, the core knows.

    Args:
        root: The global rank that the caller gave.

    Returns:
        The rank.

    Raises:
        ValueError: It does not fit into 32 bits.
        TypeError: It is no integer.
    """
    rank = operator.index(root)
    if not -(1 << 31) <= rank < 1 << 31:
        raise ValueError(f"root rank {rank} is not in the process set")
    return rank


def check_factors(scales: tuple[Any, Any]) -> tuple[float, float]:
    """Checks that the factors of a reduction are numbers.

    Args:
        scales: `prescale_factor` and `postscale_factor`, as the caller gave them.

    Returns:
        The factors.

    Raises:
        ValueError: One is no number.
        TypeError: The same.
    """
    return float(scales[0]), float(scales[1])


def check_splits(splits: Any) -> list[int] | None:
    """Checks that splits are numbers of rows; whether they fit, the core knows.

    Args:
        splits: A sequence of integers, or None.

    Returns:
        The numbers, or None.

    Raises:
        ValueError: One is no number, or does not fit into 64 bits.
        TypeError: It is no sequence of numbers.
    """
    if splits is None:
        return None
    rows = [int(count) for count in splits]
    for count in rows:
        if abs(count) >= 1 << 63:
            raise ValueError(f"alltoall: a split of {count} rows")
    return rows


def member_names(collective: str, name: str | None, count: int | None = None) -> list[str | None]:
    """Names the tensors of a call, as the ranks match them and timelines show them.

    Args:
        collective: The collective, in lower case.
        name: The name that the caller gave, or None for a call that is matched by its order.
        count: The number of tensors of a grouped call.

    Returns:
        A name for each tensor, or None for each.
    """
    if count is None:
        return [None if name is None else f"{collective}.{name}"]
    if name is None:
        return [None] * count
    return [f"{collective}.{name}_{index + 1}of{count}" for index in range(count)]


def part_name(name: str | None, part: str) -> str | None:
    """Names one of several calls that a caller made as one.

    Args:
        name: The name that the caller gave, or None.
        part: The purpose of the call.

    Returns:
        The name, or None.
    """
    return None if name is None else f"{name}.{part}"
