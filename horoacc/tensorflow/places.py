"""Ops for the position of this process in the job, computed when a graph runs."""

from __future__ import annotations

from typing import Any

from horoacc.tensorflow import _ops
from horoacc.tensorflow.raw_ops import as_written

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Gives the number of ranks of a process set when the graph runs.

    Args:
        process_set_id: The core's number of the set; 0 for all ranks.
        name: The name of the op.

    Returns:
        A scalar of type int32.

    Raises:
        tf.errors.FailedPreconditionError: `init()` was not called.
        tf.errors.InvalidArgumentError: There is no such set.
    """
    _ops.attach()
    return _ops.library().horovod_size(process_set_id=process_set_id, name=name)


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Says whether this process is in a process set when the graph runs; as for `size_op`.

    Returns:
        1 or 0, a scalar of type int32.
    """
    _ops.attach()
    return _ops.library().horovod_process_set_included(process_set_id=process_set_id, name=name)


@as_written
def rank_op(name: str | None = None) -> Any:
    """Gives this process's rank when the graph runs.

    Args:
        name: The name of the op.

    Returns:
        A scalar of type int32.

    Raises:
        tf.errors.FailedPreconditionError: `init()` was not called.
    """
    _ops.attach()
    return _ops.library().horovod_rank(name=name)


@as_written
def local_rank_op(name: str | None = None) -> Any:
    """Gives this process's rank among those on its host when the graph runs; as for `rank_op`."""
    _ops.attach()
    return _ops.library().horovod_local_rank(name=name)


@as_written
def local_size_op(name: str | None = None) -> Any:
    """Gives the number of ranks on this host when the graph runs; as for `rank_op`."""
    _ops.attach()
    return _ops.library().horovod_local_size(name=name)
