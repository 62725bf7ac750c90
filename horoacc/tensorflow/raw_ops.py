"""The ops of the library, each as a function: the names of calls, and how they wait.

An eager call waits on the calling thread, and is matched by its order unless it is named. A call in
a graph does not block a thread and always has a name, because the ranks run a graph's ops in any
order: the one that was given, or one made of the tensor's (`horoacc.tensorflow.call_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horoacc.collectives.calls import check_root
from horoacc.process_sets import ProcessSet
from horoacc.tensorflow import _ops
from horoacc.tensorflow.call_names import name_in

F = TypeVar("F", bound=Callable[..., Any])

_XLA = (
    "HoroACC's collectives cannot be compiled by XLA: call {op} outside of the function that has "
    "jit_compile=True (compute the gradients inside of it and reduce them outside), or give "
    "jit_compile=False, in Keras model.compile(..., jit_compile=False)"
)


def as_written(function: F) -> F:
    """Keeps AutoGraph from rewriting a function, and all that it calls, in a tf.function.

    Args:
        function: A function without loops or branches over tensors.

    Returns:
        The function, for a tf.function as for all others.
    """
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


def set_id(process_set: Any) -> int:
    """Gives the number of a process set for an op's attribute.

    Args:
        process_set: The set.

    Returns:
        The number. Whether this rank is in the set, the op finds out.

    Raises:
        TypeError: It is no process set.
        tf.errors.InvalidArgumentError: It is not registered.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set must be a ProcessSet, not {process_set!r}.")
    if process_set.process_set_id is None:
        text = f"{process_set} is not registered; use hvd.add_process_set()."
        raise tf.errors.InvalidArgumentError(None, None, text)
    return process_set.process_set_id


def refuse_xla(op: str) -> None:
    """Refuses to be traced into a function that XLA is to compile.

    Args:
        op: The name of the call.

    Raises:
        tf.errors.UnimplementedError: It is being traced into one; the text says what to do.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise tf.errors.UnimplementedError(None, None, _XLA.format(op=op))
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)


def manner(
    collective: str, name: str | None, like: Any, ignore_name_scope: bool = False
) -> dict[str, Any]:
    """Says how a call is named and how it waits.

    Args:
        collective: The name of the collective.
        name: The name that the caller gave, or None.
        like: A tensor whose name names the call otherwise.
        ignore_name_scope: Leave the name scope out of the name.

    Returns:
        The attributes of the op.

    Raises:
        tf.errors.UnimplementedError: XLA is to compile the function that is being traced.
    """
    _ops.attach()
    if tf.executing_eagerly():
        return {"tensor_name": "" if name is None else f"{collective}.{name}", "wait": True}
    refuse_xla(f"hvd.{collective}")
    if name is None:
        # A constant from outside of the graph has no name; `name_in` numbers such calls.
        name = str(getattr(like, "name", "noname")).replace(":", "_")
    graph = tf.compat.v1.get_default_graph()
    unique = name_in(graph, f"{collective}.{name}", ignore_name_scope)
    return {"tensor_name": unique, "wait": False}


def _any_order(result: Any) -> Any:
    """Lets a call in a tf.function start when its tensors are there, before earlier lines end."""
    if not tf.executing_eagerly():
        dependencies = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
        if dependencies is not None:
            first = result[0] if isinstance(result, (list, tuple)) else result
            dependencies.run_independently(first.op)
    return result


def called(op: Callable[..., Any], **arguments: Any) -> Any:
    """Calls an op. An exception of a signal's handler ends the wait of an eager op.

    Args:
        op: The function of the op.
        arguments: Its inputs and attributes.

    Returns:
        The outputs of the op.

    Raises:
        tf.errors.OpError: The collective failed.
    """
    try:
        return op(**arguments)
    except tf.errors.CancelledError:
        _ops.raise_interrupt()
        raise


def _run(op: Callable[..., Any], **arguments: Any) -> Any:
    return _any_order(called(op, **arguments))


def allreduce(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: int,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Reduces tensors as one unit.

    Args:
        tensors: The tensors; one, unless `grouped`.
        name: The name that the caller gave, or None.
        op: The reduction.
        scales: The factors before and after.
        process_set: The number of the set.
        grouped: Whether this is a grouped call.
        ignore_name_scope: Leave the name scope out of the name.

    Returns:
        The reduced tensors.

    Raises:
        tf.errors.OpError: The collective failed.
    """
    arguments = _reduction("allreduce", tensors, name, op, scales, process_set, ignore_name_scope)
    if grouped:
        return list(_run(_ops.library().horovod_grouped_allreduce, tensors=tensors, **arguments))
    return [_run(_ops.library().horovod_allreduce, tensor=tensors[0], **arguments)]


def reducescatter(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: int,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Reduces tensors and gives every rank a part of each; arguments as for `allreduce`.

    Returns:
        This rank's rows of each.
    """
    arguments = _reduction(
        "reducescatter", tensors, name, op, scales, process_set, ignore_name_scope
    )
    if grouped:
        return list(
            _run(_ops.library().horovod_grouped_reducescatter, tensors=tensors, **arguments)
        )
    return [_run(_ops.library().horovod_reducescatter, tensor=tensors[0], **arguments)]


def _reduction(
    collective: str,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: int,
    ignore_name_scope: bool,
) -> dict[str, Any]:
    return {
        "reduce_op": op,
        "prescale_factor": repr(float(scales[0])),
        "postscale_factor": repr(float(scales[1])),
        "process_set_id": process_set,
        **manner(collective, name, tensors[0], ignore_name_scope),
    }


def allgather(
    tensors: Sequence[Any],
    name: str | None,
    process_set: int,
    grouped: bool,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Concatenates all ranks' tensors; arguments as for `allreduce`.

    Returns:
        The concatenations.
    """
    arguments = {
        "process_set_id": process_set,
        **manner("allgather", name, tensors[0], ignore_name_scope),
    }
    if grouped:
        return list(_run(_ops.library().horovod_grouped_allgather, tensors=tensors, **arguments))
    return [_run(_ops.library().horovod_allgather, tensor=tensors[0], **arguments)]


def broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: int, ignore_name_scope: bool = False
) -> Any:
    """Gives every rank the root's tensor; arguments as for `allreduce`.

    Returns:
        The root's tensor.
    """
    return _run(
        _ops.library().horovod_broadcast, tensor=tensor, root_rank=check_root(root_rank),
        process_set_id=process_set, **manner("broadcast", name, tensor, ignore_name_scope),
    )  # fmt: skip


def alltoall(
    tensor: Any, splits: Any, name: str | None, process_set: int, ignore_name_scope: bool = False
) -> tuple[Any, Any]:
    """Sends rows to the other ranks; arguments as for `allreduce`.

    Returns:
        The received rows, and how many came from each rank.
    """
    output, received = _run(
        _ops.library().horovod_alltoall, tensor=tensor, splits=splits, process_set_id=process_set,
        **manner("alltoall", name, tensor, ignore_name_scope),
    )  # fmt: skip
    return output, received


def join() -> Any:
    """Says that this rank has nothing more to reduce.

    Returns:
        The rank that joined last.
    """
    how = manner("join", None, None)
    if tf.executing_eagerly():
        return called(_ops.library().horovod_join, **how)
    # After the calls of this graph: a rank that has joined may submit nothing else.
    earlier = [
        op for op in tf.compat.v1.get_default_graph().get_operations()
        if op.type.startswith("Horovod")
    ]  # fmt: skip
    with tf.control_dependencies(earlier):
        return _ops.library().horovod_join(**how)
