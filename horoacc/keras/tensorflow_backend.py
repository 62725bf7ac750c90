"""Keras on TensorFlow: in a graph an op reduces a bucket of gradients, eagerly one call all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

import horoacc.tensorflow as hvd
from horoacc.collectives.calls import ALLREDUCE
from horoacc.compression import Compressor
from horoacc.keras.backend import Member, Travel
from horoacc.process_sets import ProcessSet
from horoacc.tensorflow import _ops, whole_steps
from horoacc.tensorflow.failures import with_own_errors
from horoacc.tensorflow.graph_buckets import buckets
from horoacc.tensorflow.reductions import reduce_unit
from horoacc.tensorflow.sizes import local_divisor

R = TypeVar("R")


class TensorFlowBackend:
    """See `horoacc.keras.backend.Backend`."""

    frontend = hvd
    # A graph has the ops of the gradients that it was made for, the same on all ranks.
    sends_absent = False

    def attach(self) -> None:
        """Has TensorFlow's ops use the engine."""
        _ops.attach()

    def register(self, variables: Sequence[Any], compression: type[Compressor]) -> None:
        """There is nothing to prepare."""

    def tensor(self, value: Any) -> Any:
        """See `Backend.tensor`."""
        return tf.convert_to_tensor(_variable(value))

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Broadcasts the variables that the graph has collected; refuses outside a graph."""
        return hvd.broadcast_global_variables(root_rank)

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int, name: str) -> None:
        """Gives all ranks the root's values, in place."""
        del name
        hvd.broadcast_variables([_variable(variable) for variable in variables], root_rank)

    def gradients(self, loss: Any, variables: Sequence[Any], tape: Any) -> list[Any]:
        """Computes the gradients of a loss."""
        if callable(loss):
            with tf.GradientTape() as tape:
                loss = loss()
        if tape is None:
            raise ValueError("A tape that has recorded the loss is needed, or a loss function.")
        return list(tape.gradient(loss, [_variable(variable) for variable in variables]))

    def reduce_gradients(self, parts: Sequence[Sequence[Member]], travel: Travel) -> list[Any]:
        """See `Backend.reduce_gradients`."""
        if travel.sparse_as_dense:
            parts = [
                [member._replace(gradient=self.dense(member.gradient)) for member in part]
                for part in parts
            ]
        if tf.executing_eagerly():
            return _reduce_together(parts, travel)
        members = [member for part in parts for member in part]
        reduced: dict[str, Any] = {}
        parts = _in_buckets(parts, travel)
        for part in parts:
            dense = all(not isinstance(member.gradient, tf.IndexedSlices) for member in part)
            values = (
                _dense(part, travel, recurring=len(parts) == 1)
                if dense
                else [_single(one, travel) for one in part]
            )
            reduced.update(zip((one.name for one in part), values, strict=True))
        return [reduced[one.name] for one in members]

    def teach_optimizers(self) -> None:
        """See `Backend.teach_optimizers`."""
        whole_steps.teach_optimizers()

    def note(self, by: Any, prefix: str, obstacle: str) -> None:
        """See `Backend.note`."""
        whole_steps.note(by, _op_name(prefix), obstacle)

    def tied(self, gradients: Sequence[Any]) -> list[Any]:
        """See `Backend.tied`."""
        return whole_steps.tied(gradients)

    def all_finite(self, gradients: Sequence[Any], travel: Travel) -> Any:
        """See `Backend.all_finite`."""
        values = [one.values if isinstance(one, tf.IndexedSlices) else one for one in gradients]
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in values]
        mine = tf.cast(tf.reduce_all(tf.stack([*finite, True])), tf.int32)
        everywhere = hvd.allreduce(
            mine, op=hvd.Min, name=_op_name(f"{travel.name}.finite"),
            process_set=travel.process_set, ignore_name_scope=True,
        )  # fmt: skip
        return everywhere > 0

    def spoiled_unless(self, finite: Any, gradient: Any) -> Any:
        """See `Backend.spoiled_unless`."""
        return self.scaled(gradient, tf.where(finite, 1.0, float("nan")))

    def local_divisor(self, process_set: ProcessSet, scale_local_gradients: bool) -> Any:
        """See `Backend.local_divisor`."""
        return local_divisor(process_set, scale_local_gradients)

    def trace(self) -> Any:
        """See `Backend.trace`."""
        return whole_steps.trace()

    def with_own_errors(self, func: Callable[..., R]) -> Callable[..., R]:
        """Wraps a function so that TensorFlow's errors of HoroACC's ops come out as HoroACC's."""
        return with_own_errors(func)

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Multiplies a gradient."""
        return tf.math.scalar_mul(tf.cast(factor, gradient.dtype), gradient)

    def dense(self, gradient: Any) -> Any:
        """Makes a sparse gradient dense."""
        return tf.convert_to_tensor(gradient)


def _in_buckets(parts: Sequence[Sequence[Member]], travel: Travel) -> list[Sequence[Member]]:
    """Members that are no group's may share an op."""
    alone = [part[0] for part in parts if len(part) == 1]
    places = buckets([one.gradient for one in alone], travel.scaling.op, travel.compression)
    together = [[alone[place] for place in part] for part in places]
    return [*(part for part in parts if len(part) > 1), *together]


def _variable(value: Any) -> Any:
    return value.value if isinstance(value, keras.Variable) else value


def _single(member: Member, travel: Travel) -> Any:
    if not isinstance(member.gradient, tf.IndexedSlices):
        return _dense([member], travel, recurring=False)[0]
    # Slices are gathered; the two factors of a predivided average make a plain one.
    return hvd.allreduce(
        member.gradient, name=_op_name(member.name), op=travel.scaling.op,
        process_set=travel.process_set, ignore_name_scope=True,
    )  # fmt: skip


def _dense(part: Sequence[Member], travel: Travel, recurring: bool) -> list[Any]:
    scaling = travel.scaling
    return reduce_unit(
        ALLREDUCE, [member.gradient for member in part], travel.compression, scaling.op,
        (scaling.prescale, scaling.postscale), _op_name(part[0].name), travel.process_set, True,
        len(part) if len(part) > 1 else None, recurring,
    )  # fmt: skip


def _reduce_together(parts: Sequence[Sequence[Member]], travel: Travel) -> list[Any]:
    """Without a graph each call waits, so that there should be as few as possible."""
    members = [member for part in parts for member in part]
    dense = [one for one in members if not isinstance(one.gradient, tf.IndexedSlices)]
    reduced: dict[str, Any] = {}
    if dense:
        reduced = dict(
            zip((one.name for one in dense), _dense(dense, travel, recurring=True), strict=True)
        )
    return [reduced[one.name] if one.name in reduced else _single(one, travel) for one in members]


def _op_name(name: str) -> str:
    """The name as TensorFlow allows it for an op."""
    return "".join(char if char.isalnum() or char in "._-/" else "_" for char in name)


BACKEND = TensorFlowBackend()
