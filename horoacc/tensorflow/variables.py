"""Variables: those inside wrappers, and the ops that receive into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import check_root
from horoacc.tensorflow import _ops
from horoacc.tensorflow.raw_ops import called, manner


def variable_of(variable: Any) -> Any:
    """Gives TensorFlow's variable behind a variable, which may be one of Keras 3."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def broadcast_in_place(
    variables: Sequence[Any], root_rank: int, name: str | None, process_set: int
) -> list[Any]:
    """Gives every rank's variables the values of the root's; those of a kind and place are a unit.

    They are resource variables, or reference variables of a TF1-style graph; ValueError for others.
    Gives the operations in a graph, nothing in an eager call.
    """
    check_root(root_rank)
    name = "variables" if name is None else name
    resources: dict[str, list[Any]] = {}
    references: dict[tuple[str, str], list[Any]] = {}
    for variable in variables:
        if hasattr(variable, "handle"):
            # A variable of a graph may have no device yet, and its type decides the device.
            place = variable.device or variable.dtype.name
            resources.setdefault(place, []).append(variable.handle)
        elif isinstance(variable, tf.compat.v1.Variable):
            kind = (variable.dtype.base_dtype.name, variable.device)
            references.setdefault(kind, []).append(variable._ref())
        else:
            raise ValueError(f"Only variables can be received in place, not {variable!r}.")
    done = []
    how = {"root_rank": root_rank, "process_set_id": process_set}
    # Ranks have the same devices in the same order, but maybe under other names.
    for number, handles in enumerate(resources.values()):
        done.append(called(
            _ops.library().horovod_broadcast_inplace_resource, variables=handles, **how,
            **manner("broadcast", f"{name}.{number}" if number else name, None),
        ))  # fmt: skip
    for number, ((dtype, _), of_kind) in enumerate(references.items()):
        received = called(
            _ops.library().horovod_broadcast_inplace, variables=of_kind, **how,
            **manner("broadcast", f"{name}.{dtype}.{number}", None),
        )  # fmt: skip
        done.append(received[0].op)
    return [] if tf.executing_eagerly() else done
