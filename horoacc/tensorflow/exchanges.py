"""Collectives of TensorFlow's tensors and variables that do not reduce, and join.

Kinds of execution and errors are those of `horoacc.tensorflow.reductions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import ALLGATHER, ALLTOALL, BROADCAST
from horoacc.collectives.validation_errors import check_group
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow import raw_ops
from horoacc.tensorflow.raw_ops import as_written, set_id
from horoacc.tensorflow.validation_errors import tensor_of, validating
from horoacc.tensorflow.variables import broadcast_in_place, variable_of

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "join",
]


@as_written
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates all ranks' tensors along the first dimension.

    Args:
        tensor: The tensor; the ranks' may differ in the first dimension.
        name: As for `allreduce`.
        ignore_name_scope: As for `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The concatenation, in the order of ranks, on every rank.

    Raises:
        tf.errors.OpError: The collective failed; the module lists the errors.
    """
    return _gathered([tensor], name, process_set, None, ignore_name_scope)[0]


@as_written
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates several tensors as one unit; arguments and errors as for `allgather`.

    Returns:
        The concatenations, in order.

    Raises:
        ValueError: There are no tensors.
    """
    check_group(tensors, ALLGATHER, name, process_set)
    return _gathered(tensors, name, process_set, len(tensors), ignore_name_scope)


def _gathered(
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    count: int | None,
    ignore_name_scope: bool,
) -> list[Any]:
    """Gathers tensors; `count` is the number of those of a grouped call."""
    with validating(ALLGATHER, name, process_set, count):
        given = [tensor_of(tensor) for tensor in tensors]
    number = set_id(process_set)
    return raw_ops.each("allgather", given, name, number, count is not None, ignore_name_scope)


@as_written
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the root's tensor.

    Args:
        tensor: The tensor; shape and type are the same on all ranks.
        root_rank: The global rank that sends.
        name: As for `allreduce`.
        ignore_name_scope: As for `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The root's tensor.

    Raises:
        tf.errors.OpError: The collective failed; the module lists the errors.
    """
    with validating(BROADCAST, name, process_set):
        tensor = tensor_of(tensor)
    return raw_ops.broadcast(tensor, root_rank, name, set_id(process_set), ignore_name_scope)


@as_written
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives every rank's variables the values of the root's, in place and as one unit.

    Args:
        variables: Variables; their shapes are the same on all ranks. In a graph they may be
            reference variables (`use_resource=False` of `tf.compat.v1`), too.
        root_rank: The global rank that sends.
        name: As for `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The values that the variables have then.

    Raises:
        tf.errors.OpError: The collective failed; the module lists the errors.
        ValueError: There are no variables, or something else is among them.
    """
    if not isinstance(variables, (list, tuple)) or not variables:
        raise ValueError("broadcast_ needs a list of at least one variable.")
    inner = [variable_of(variable) for variable in variables]
    done = broadcast_in_place(inner, root_rank, name, set_id(process_set))
    with tf.control_dependencies(done):
        return [variable.read_value() for variable in inner]


@as_written
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends parts of the first dimension to the other ranks.

    Args:
        tensor: The tensor.
        splits: How many rows go to each rank of the set, in order: a vector of integers. Equal
            parts if None.
        name: As for `allreduce`.
        ignore_name_scope: As for `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The received rows, in the order of ranks; with `splits`, also how many came from each.

    Raises:
        tf.errors.OpError: The collective failed; the module lists the errors.
    """
    with validating(ALLTOALL, name, process_set):
        tensor = tensor_of(tensor)
        rows = tf.zeros([0], tf.int32) if splits is None else tf.cast(splits, tf.int32)
    output, received = raw_ops.alltoall(tensor, rows, name, set_id(process_set), ignore_name_scope)
    return output if splits is None else (output, received)


@as_written
def join() -> Any:
    """Says that this rank has nothing more to reduce, and waits until every rank has said so.

    See `horoacc.join`. In a graph it comes after all collectives that the graph has so far.

    Returns:
        The rank that joined last, a scalar of type int32, the same on every rank.

    Raises:
        tf.errors.OpError: A rank was lost or has shut down.
    """
    return raw_ops.join()
