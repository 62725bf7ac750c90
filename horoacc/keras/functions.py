"""The collectives of Keras: of tensors, arrays, numbers and variables, for the backend in use."""

from __future__ import annotations

from typing import Any

from horoacc.collectives.calls import resolve_op
from horoacc.compression import Compressor, NoneCompressor
from horoacc.dtypes import Average
from horoacc.keras import backend


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = NoneCompressor,
) -> Any:
    """Reduces a value over all ranks.

    Args:
        value: A tensor of the backend, a NumPy array, a number or a Keras variable, of the same
            shape and type on every rank. Not changed.
        name: The same on all ranks; calls without one are matched by their order.
        average: Whether to average rather than sum. `op` supersedes it.
        prescale_factor: Factor of each rank's value before the reduction.
        postscale_factor: Factor of the result.
        op: The reduction.
        compression: How to make the value narrower while it travels.

    Returns:
        A tensor of the backend.

    Raises:
        ValueError: An argument cannot work.
        HorovodInternalError: The collective failed.
    """
    if op is None:
        op = Average if average is None or average else resolve_op(None, average)
    elif average is False:
        op = resolve_op(op, average)
    place = backend.current()
    return place.frontend.allreduce(
        place.tensor(value), name=name, compression=compression, op=op,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def allgather(value: Any, name: str | None = None) -> Any:
    """Joins all ranks' values along the first dimension.

    Args:
        value: As for `allreduce`; the first dimension may differ between ranks.
        name: The same on all ranks.

    Returns:
        A tensor of the backend.

    Raises:
        HorovodInternalError: The collective failed.
    """
    place = backend.current()
    return place.frontend.allgather(place.tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Gives all ranks the root's value.

    Args:
        value: As for `allreduce`.
        root_rank: The global rank that sends.
        name: The same on all ranks.

    Returns:
        A tensor of the backend.

    Raises:
        ValueError: There is no such rank.
        HorovodInternalError: The collective failed.
    """
    place = backend.current()
    return place.frontend.broadcast(place.tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value over all ranks and gives each its share of the first dimension.

    Args:
        value: As for `allreduce`, with a dimension at least.
        name: The same on all ranks.
        op: Average or Sum.

    Returns:
        A tensor of the backend; the first ranks have a row more if the rows do not divide evenly.

    Raises:
        HorovodInternalError: The collective failed.
    """
    place = backend.current()
    return place.frontend.reducescatter(place.tensor(value), name=name, op=op)


def broadcast_global_variables(root_rank: int) -> Any:
    """Broadcasts the variables that a graph of TensorFlow 1 has collected.

    Args:
        root_rank: The global rank that sends.

    Returns:
        The op that does it.

    Raises:
        RuntimeError: There is no graph; use `callbacks.BroadcastGlobalVariablesCallback`.
    """
    return backend.current().broadcast_global_variables(root_rank)
