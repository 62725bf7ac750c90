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
from horoacc.process_sets import ProcessSet, is_registered
from horoacc.tensorflow import _ops
from horoacc.tensorflow.call_names import name_in

F = TypeVar("F", bound=Callable[..., Any])

_XLA = (
    "HoroACC's collectives cannot be compiled by XLA: call {op} outside of the function that has "
    "jit_compile=True (compute the gradients inside of it and reduce them outside), or give "
    "jit_compile=False, in Keras model.compile(..., jit_compile=False)"
)


def as_written(function: F) -> F:
    """Keeps AutoGraph from rewriting a function, without loops over tensors, and all it calls."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


class UnknownProcessSetError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """A process set is not registered. A ValueError, as Horovod raises, and TensorFlow's error."""


def set_id(process_set: Any) -> int:
    """Gives a set's number for an op's attribute; whether this rank is in it, the op finds out."""
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set must be a ProcessSet, not {process_set!r}.")
    number = process_set.process_set_id
    if number is None or not is_registered(number):
        text = f"{process_set} is not registered; use hvd.add_process_set()."
        raise UnknownProcessSetError(None, None, text)
    return number


def refuse_xla(op: str) -> None:
    """Raises UnimplementedError, which says what to do, where XLA is to compile the function."""
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
    """Gives the attributes that say how a call is named, else after `like`, and how it waits."""
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
    """Calls an op. An exception of a signal's handler ends the wait of an eager op."""
    try:
        return op(**arguments)
    except tf.errors.CancelledError:
        _ops.raise_interrupt()
        raise


def _run(op: Callable[..., Any], **arguments: Any) -> Any:
    return _any_order(called(op, **arguments))


def each(
    collective: str,
    tensors: Sequence[Any],
    name: str | None,
    process_set: int,
    grouped: bool,
    ignore_name_scope: bool = False,
    **attributes: Any,
) -> list[Any]:
    """Runs a collective with one result for each tensor: one, or several as a unit if `grouped`."""
    attributes["process_set_id"] = process_set
    attributes |= manner(collective, name, tensors[0], ignore_name_scope)
    library = _ops.library()
    if grouped:
        grouped_op = getattr(library, f"horovod_grouped_{collective}")
        return list(_run(grouped_op, tensors=tensors, **attributes))
    return [_run(getattr(library, f"horovod_{collective}"), tensor=tensors[0], **attributes)]


def reduce(
    collective: str,
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    scales: tuple[float, float],
    process_set: int,
    grouped: bool,
    ignore_name_scope: bool = False,
    recurring: bool = False,
) -> list[Any]:
    """Runs "allreduce" or "reducescatter" as `each` does.

    A `recurring` call comes again in each step, and has no other one beside it: between hosts it
    soon needs no message (`ha_call` in the C API).
    """
    return each(
        collective, tensors, name, process_set, grouped, ignore_name_scope, reduce_op=op,
        prescale_factor=repr(float(scales[0])), postscale_factor=repr(float(scales[1])),
        recurring=recurring,
    )  # fmt: skip


def broadcast(
    tensor: Any, root_rank: int, name: str | None, process_set: int, ignore_name_scope: bool = False
) -> Any:
    """Gives every rank the root's tensor."""
    return _run(
        _ops.library().horovod_broadcast, tensor=tensor, root_rank=check_root(root_rank),
        process_set_id=process_set, **manner("broadcast", name, tensor, ignore_name_scope),
    )  # fmt: skip


def alltoall(
    tensor: Any, splits: Any, name: str | None, process_set: int, ignore_name_scope: bool = False
) -> tuple[Any, Any]:
    """Sends rows to the other ranks; gives the received ones, and how many came from each."""
    output, received = _run(
        _ops.library().horovod_alltoall, tensor=tensor, splits=splits, process_set_id=process_set,
        **manner("alltoall", name, tensor, ignore_name_scope),
    )  # fmt: skip
    return output, received


def join() -> Any:
    """Says that this rank has nothing more to reduce; gives the rank that joined last."""
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
