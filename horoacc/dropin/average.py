"""Horovod's older parameter `average`: in `horovod.common.util` and each framework's `mpi_ops`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from horoacc.dtypes import Average, Sum


def handle_average(op: int | None, average: bool | None) -> int:
    """Makes one operation of Horovod's two parameters for it.

    Args:
        op: The operation, or None.
        average: The older parameter, or None.

    Returns:
        The operation; `Average` if neither was given.

    Raises:
        ValueError: Both were given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is None:
        return Average if op is None else op
    warnings.warn(
        "Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=2
    )
    return Average if average else Sum


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[int | None, bool | None], int]:
    """Gives `handle_average`.

    Args:
        reduce_ops: Horovod's module of operations; the numbers are the same everywhere.

    Returns:
        The function.
    """
    del reduce_ops
    return handle_average
