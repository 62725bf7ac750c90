"""The reductions of TensorFlow's tensors: eager, in a tf.function, and in TF1-style graphs.

All of them are differentiable (`horoacc.tensorflow.gradients`). Tensors are reduced on the device
that TensorFlow chooses or is told, as for any other op: on the CPU or on a GPU (docs/gpu.md).
`device_dense` and `device_sparse` are accepted for Horovod's sake.

A wrong call raises TensorFlow's errors: `InvalidArgumentError` for an argument that cannot work,
`FailedPreconditionError` if the ranks disagree or `init()` was not called,
`AbortedError` for a reduce-scatter that is neither a sum nor an average, and `UnknownError` if the
job is over or a rank was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horoacc.collectives.calls import (
    ALLREDUCE,
    COLLECTIVE_NAMES,
    REDUCESCATTER,
    check_factors,
    resolve_op,
)
from horoacc.collectives.validation_errors import check_group
from horoacc.compression import Compressor, check_no_codec, decompress_all, is_codec
from horoacc.dtypes import Average
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.tensorflow import raw_ops
from horoacc.tensorflow.coded import allreduce_coded
from horoacc.tensorflow.compression import Compression
from horoacc.tensorflow.raw_ops import as_written, set_id
from horoacc.tensorflow.sparse import allreduce_sparse
from horoacc.tensorflow.validation_errors import tensor_of, validating

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


@as_written
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        tensor: A `tf.Tensor`, a variable or a `tf.IndexedSlices`; slices are gathered, not reduced,
            and their sum or average is the `tf.IndexedSlices` that is returned.
        average: Older way to say `op=Average` (True) or `op=Sum` (False).
        device_dense: Not used.
        device_sparse: Not used.
        compression: How to make the tensor narrower while it travels.
        op: The reduction; Average by default.
        prescale_factor: Factor of each rank's tensor before the reduction.
        postscale_factor: Factor of the result.
        name: The same on all ranks. Eager calls without one are matched by their order, calls in a
            graph by the tensor's name.
        process_set: The ranks that take part.
        ignore_name_scope: Leave the graph's name scope out of the name.

    Returns:
        The reduced tensor, of the same shape and type, the same on every rank.

    Raises:
        tf.errors.OpError: The collective failed; the module lists the errors.
        ValueError: `op` and `average` were given, or there is no such reduction.
        NotImplementedError: Slices with another reduction than Average and Sum, or with factors.
    """
    del device_dense, device_sparse
    with validating(ALLREDUCE, name, process_set):
        op = resolve_op(op, average)
        scales = check_factors((prescale_factor, postscale_factor))
    if isinstance(tensor, tf.IndexedSlices):
        return allreduce_sparse(tensor, op, scales, name, process_set, ignore_name_scope)
    call = (op, scales, name, process_set, ignore_name_scope)
    return reduce_unit(ALLREDUCE, [tensor], compression, *call, None)[0]


@as_written
def reduce_unit(
    collective: int,
    given: Sequence[Any],
    compression: type[Compressor],
    op: int,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    count: int | None,
    recurring: bool = False,
) -> list[Any]:
    """Compresses and reduces tensors; `count` is the number of those of a grouped call."""
    with validating(collective, name, process_set, count):
        if collective == REDUCESCATTER:
            check_no_codec(compression)
        scales = check_factors(scales)
        tensors = [tensor_of(tensor) for tensor in given]
    if is_codec(compression):
        if all(tensor.dtype.is_floating for tensor in tensors):
            return allreduce_coded(tensors, compression, name, op, scales, process_set)
        compression = Compression.none
    with validating(collective, name, process_set, count):
        compressed = [compression.compress(tensor) for tensor in tensors]
    reduced = raw_ops.reduce(
        COLLECTIVE_NAMES[collective], [tensor for tensor, _ in compressed], name, op, scales,
        set_id(process_set), count is not None, ignore_name_scope, recurring,
    )  # fmt: skip
    return decompress_all(compression, reduced, compressed)


@as_written
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces several tensors as one unit; arguments and errors as for `allreduce`.

    Slices among them are gathered, each by itself. The tensors' types may differ.

    Returns:
        The reduced tensors, in order.

    Raises:
        ValueError: As `allreduce`, and if there are no tensors.
    """
    check_group(tensors, ALLREDUCE, name, process_set)
    sparse = any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors)
    if sparse:
        return [
            allreduce(
                tensor, average, device_dense, device_sparse, compression, op, prescale_factor,
                postscale_factor, None if name is None else f"{name}_{index + 1}of{len(tensors)}",
                process_set, ignore_name_scope,
            )
            for index, tensor in enumerate(tensors)
        ]  # fmt: skip
    with validating(ALLREDUCE, name, process_set, len(tensors)):
        op = resolve_op(op, average)
    call = (op, (prescale_factor, postscale_factor), name, process_set, ignore_name_scope)
    return reduce_unit(ALLREDUCE, tensors, compression, *call, len(tensors))


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor and gives every rank a part of its first dimension.

    Args:
        tensor: The tensor. The first `rows % size` ranks get one row more than the others.
        device_dense: Not used.
        compression: How to make the tensor narrower while it travels; no codec.
        op: Average or Sum.
        name: As for `allreduce`.
        process_set: The ranks that take part.
        ignore_name_scope: As for `allreduce`.
        prescale_factor: Factor of each rank's tensor before the reduction.
        postscale_factor: Factor of the result.

    Returns:
        This rank's rows of the reduction.

    Raises:
        tf.errors.AbortedError: `op` is neither Average nor Sum.
        tf.errors.OpError: The collective failed; the module lists the errors.
        ValueError: The compression is a codec.
    """
    del device_dense
    call = (op, (prescale_factor, postscale_factor), name, process_set, ignore_name_scope)
    return reduce_unit(REDUCESCATTER, [tensor], compression, *call, None)[0]


@as_written
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Reduce-scatters several tensors as one unit; arguments and errors as for `reducescatter`.

    Returns:
        This rank's rows of each reduction, in order.
    """
    del device_dense
    check_group(tensors, REDUCESCATTER, name, process_set)
    call = (op, (prescale_factor, postscale_factor), name, process_set, False)
    return reduce_unit(REDUCESCATTER, tensors, compression, *call, len(tensors))
