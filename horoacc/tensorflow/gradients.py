"""Gradients of the collectives' ops: each is made of collectives.

Rules, as in `horoacc.torch.autograd`: allreduce reduces the gradient alike, for every
operation; all-gather averages it and takes its own rows; broadcast averages it on the root and is
zero elsewhere; all-to-all sends the rows back; reduce-scatter gathers.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc.dtypes import Average, Sum
from horoacc.process_sets import registered
from horoacc.tensorflow import _ops, raw_ops
from horoacc.tensorflow.sizes import rank_in, size_of

_ONCE = (1.0, 1.0)


def _name(op: Any) -> str | None:
    """The name that the gradient's calls get: after the call's, without where that stands."""
    full = tf.compat.as_str(op.get_attr("tensor_name")).rpartition("/")[2]
    return f"{full.partition('.')[2]}.backward" if full else None


def _scales(op: Any) -> tuple[float, float]:
    return float(op.get_attr("prescale_factor")), float(op.get_attr("postscale_factor"))


def _dense(op: Any, grads: Any) -> list[Any]:
    """The gradients; zeros for a result that nothing depends on, because other ranks may send."""
    return [
        tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)
        for grad, output in zip(grads, op.outputs, strict=True)
    ]


def _allreduce(op: Any, *grads: Any) -> Any:
    grouped = len(grads) > 1
    return raw_ops.reduce(
        "allreduce", _dense(op, grads), _name(op), op.get_attr("reduce_op"), _scales(op),
        op.get_attr("process_set_id"), grouped,
    )  # fmt: skip


def _averaged(op: Any, grads: list[Any], number: int) -> list[Any]:
    call = (grads, _name(op), Average, _ONCE, number, len(grads) > 1)
    return raw_ops.reduce("allreduce", *call)


def _allgather(op: Any, *grads: Any) -> Any:
    number = op.get_attr("process_set_id")
    averaged = _averaged(op, _dense(op, grads), number)
    own = tf.stack([tf.shape(tensor)[0] for tensor in op.inputs])
    name = _name(op)
    (rows,) = raw_ops.each(
        "allgather", [own[tf.newaxis]], None if name is None else f"{name}.rows", number, False
    )
    begins = tf.reduce_sum(rows[: rank_in(registered(number))], axis=0)
    return [grad[begins[index] : begins[index] + own[index]] for index, grad in enumerate(averaged)]


def _broadcast(op: Any, grad: Any) -> Any:
    (averaged,) = _averaged(op, _dense(op, [grad]), op.get_attr("process_set_id"))
    is_root = tf.equal(_ops.library().horovod_rank(), op.get_attr("root_rank"))
    return tf.where(is_root, averaged, tf.zeros_like(averaged))


def _alltoall(op: Any, grad: Any, _: Any) -> Any:
    back, _ = raw_ops.alltoall(
        _dense(op, [grad, None])[0], op.outputs[1], _name(op), op.get_attr("process_set_id")
    )
    return back, None


def _reducescatter(op: Any, *grads: Any) -> Any:
    number = op.get_attr("process_set_id")
    before, after = _scales(op)
    scaled = [grad * tf.cast(before * after, grad.dtype) for grad in _dense(op, grads)]
    if op.get_attr("reduce_op") == Sum:
        size = size_of(registered(number))
        scaled = [grad * tf.cast(size, grad.dtype) for grad in scaled]
    return raw_ops.each("allgather", scaled, _name(op), number, len(scaled) > 1)


for _op, _gradient in {
    "HorovodAllreduce": _allreduce,
    "HorovodGroupedAllreduce": _allreduce,
    "HorovodAllgather": _allgather,
    "HorovodGroupedAllgather": _allgather,
    "HorovodBroadcast": _broadcast,
    "HorovodAlltoall": _alltoall,
    "HorovodReducescatter": _reducescatter,
    "HorovodGroupedReducescatter": _reducescatter,
}.items():
    tf.RegisterGradient(_op)(_gradient)

for _op in ("HorovodBroadcastInplace", "HorovodBroadcastInplaceResource", "HorovodJoin",
            "HorovodRank", "HorovodLocalRank", "HorovodLocalSize", "HorovodSize",
            "HorovodProcessSetIncluded"):  # fmt: skip
    tf.no_gradient(_op)
