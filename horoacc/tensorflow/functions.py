"""Broadcasts of variables and of Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horoacc import objects
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow import raw_ops
from horoacc.tensorflow.raw_ops import as_written
from horoacc.tensorflow.variables import broadcast_in_place, variable_of

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


@as_written
def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Gives every rank's variables the values of the root's, as at the beginning of training.

    Args:
        variables: Variables of TensorFlow's or of Keras; shapes and types are the same on all
            ranks, and so is their order. None at all do no harm.
        root_rank: The global rank that sends.
        process_set: The ranks that take part.
        inplace: Accepted for Horovod's sake: variables are always received in place.

    Returns:
        In a graph an operation that does it; None in an eager call.

    Raises:
        tf.errors.OpError: The collective failed; `horoacc.tensorflow.reductions` has the meanings.
    """
    del inplace
    inner = [variable_of(variable) for variable in variables]
    done = broadcast_in_place(inner, root_rank, None, raw_ops.set_id(process_set))
    return None if tf.executing_eagerly() else tf.group(*done)


def broadcast_global_variables(root_rank: int) -> Any:
    """Makes an operation that gives all ranks the root's values of a TF1 graph's variables.

    Args:
        root_rank: The global rank that sends.

    Returns:
        The operation.

    Raises:
        RuntimeError: There is no graph: eager execution is on.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the root's variables once a TF1 session has been made.

    For `tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])`, so that all ranks begin alike,
    also if only the root has restored a checkpoint.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Makes the hook.

        Args:
            root_rank: The global rank that sends.
            device: Accepted for Horovod's sake; not used.
        """
        super().__init__()
        del device
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the broadcast to the graph."""
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast.

        Args:
            session: The session.
            coord: Not used.
        """
        del coord
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends an object now, in eager execution or with a graph, as for `horoacc.broadcast_object`.

    `session` is accepted for Horovod's sake; no session is needed.

    Returns:
        The root's object: itself on the root, a copy elsewhere.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Makes a function that sends an object; arguments, also `session`, as for `broadcast_object`.

    Returns:
        A function of the object, with the result of `broadcast_object`.
    """

    def send(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return send


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Collects every rank's object on every rank, now, as for `horoacc.allgather_object`.

    `session` is accepted for Horovod's sake; no session is needed.

    Returns:
        The objects by rank within the process set.
    """
    del session
    return objects.allgather_object(obj, name, process_set)
