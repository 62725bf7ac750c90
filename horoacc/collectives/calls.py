"""Checks and names that the collectives of all frameworks share."""

from __future__ import annotations

import operator
import sys
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
REDUCE = 6
GATHER = 7
SCATTER = 8
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
    """Finds the reduction of a call, Average by default; ValueError for both, or an unknown one."""
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


def level_of_user(*prefixes: str) -> int:
    """How far up the stack of this function's caller the first line is of another module than those
    with these prefixes, for `warnings.warn`.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(prefixes):
        level, frame = level + 1, frame.f_back
    return level


def check_scatter_op(op: int) -> int:
    """Checks the reduction of a reduce-scatter; RuntimeError if it is neither Sum nor Average."""
    if op not in (dtypes.Sum, dtypes.Average):
        raise RuntimeError(
            f"Reducescatter only supports Average and Sum, not {dtypes.OP_NAMES.get(op, repr(op))}."
        )
    return int(op)


def check_root(root: Any) -> int:
    """Checks that a root is an integer of 32 bits; whether there is such a rank, the core knows."""
    rank = operator.index(root)
    if not -(1 << 31) <= rank < 1 << 31:
        raise ValueError(f"root rank {rank} is not in the process set")
    return rank


def check_factors(scales: tuple[Any, Any]) -> tuple[float, float]:
    """Checks that `prescale_factor` and `postscale_factor` are numbers."""
    return float(scales[0]), float(scales[1])


def check_splits(splits: Any) -> list[int] | None:
    """Checks that splits are integers of 64 bits, or None; whether they fit, the core knows."""
    if splits is None:
        return None
    rows = [int(count) for count in splits]
    for count in rows:
        if abs(count) >= 1 << 63:
            raise ValueError(f"alltoall: a split of {count} rows")
    return rows


def member_names(collective: str, name: str | None, count: int | None = None) -> list[str | None]:
    """Names the tensors of a call, for ranks and timelines; `count` is that of a grouped call.

    The names are None where the caller gave none: such calls are matched by their order.
    """
    if count is None:
        return [None if name is None else f"{collective}.{name}"]
    if name is None:
        return [None] * count
    return [f"{collective}.{name}_{index + 1}of{count}" for index in range(count)]


def part_name(name: str | None, part: str) -> str | None:
    """Names one of several calls that a caller made as one, by its purpose; None without a name."""
    return None if name is None else f"{name}.{part}"
