"""What the collectives of every framework check and name alike before they submit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
        NotImplementedError: The reduction is Adasum.
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
    if op == dtypes.Adasum:
        raise NotImplementedError("Adasum is not implemented.")
    if op not in dtypes.OP_NAMES:
        raise ValueError(f"There is no reduction {op!r}; see hvd.Average, hvd.Sum and the others.")
    return op


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
    return op


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
        part: What the call is for.

    Returns:
        The name, or None.
    """
    return None if name is None else f"{name}.{part}"


def check_list(tensors: Sequence[Any], collective: str) -> None:
    """Checks the list of a grouped call.

    Args:
        tensors: The tensors.
        collective: The collective, for the message.

    Raises:
        ValueError: There are none, or this is a single tensor instead of a list.
    """
    if not isinstance(tensors, (list, tuple)) or not tensors:
        raise ValueError(f"grouped_{collective} needs a list of at least one tensor.")
