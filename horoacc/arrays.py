"""The collectives of NumPy arrays, and of objects that NumPy can view as arrays.

A call gives back the kind of array that it was given, where that library can take one over from
NumPy. Tensors of torch are treated as `horoacc.torch` treats them, but without autograd.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from horoacc import process
from horoacc.collectives import Collectives, barrier, join
from horoacc.collectives.numpy_tensors import numpy_tensors
from horoacc.collectives.tensors import Tensors
from horoacc.compression import NoneCompressor, narrowing
from horoacc.dtypes import OP_NAMES
from horoacc.eight_bit import Int8Compressor
from horoacc.handles import poll, synchronize
from horoacc.process_sets import ProcessSet

__all__ = [
    "Compression", "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "join",
    "poll", "reducescatter", "reducescatter_async", "synchronize",
]  # fmt: skip

FP16Compressor = narrowing(
    "FP16Compressor", __name__,
    lambda tensor: getattr(tensor, "dtype", None) in (np.float32, np.float64), np.float16,
    lambda tensor, dtype: tensor.astype(dtype),
)  # fmt: skip


class Compression:
    """The compressors of arrays.

    Attributes:
        none: Leaves them as they are.
        fp16: Sends float32 and float64 as float16.
        int8: A codec: sends floating-point numbers as 8-bit integers with a scale for 256 of them.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    int8 = Int8Compressor


def _choose(tensor: Any) -> Tensors:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return numpy_tensors
    from horoacc.torch.tensors import torch_tensors  # noqa: PLC0415 - torch is loaded already

    return torch_tensors


class _Arrays(Collectives[Any]):
    """With a short way for arrays: a blocking call of a few bytes takes as long as its checks."""

    def _reduce(
        self, tensor: Any, average: bool | None, name: str | None, op: int | None, prescale: float,
        postscale: float, process_set: ProcessSet, in_place: bool, wait: bool,
    ) -> Any:  # fmt: skip
        if (
            wait and type(tensor) is np.ndarray and type(process_set) is ProcessSet
            and average is None and type(op) is int and op in OP_NAMES
            and type(prescale) is type(postscale) is float and prescale == 1.0 == postscale
        ):  # fmt: skip
            number = process_set.process_set_id
            if number == 0 or (number is not None and process_set.included()):
                engine = process.engine()
                try:
                    output = tensor if in_place else np.empty_like(tensor)
                except MemoryError:  # the other ranks are told of it below
                    output = None
                reduced = engine.reduce_array(tensor, output, name, op, number)
                if reduced:
                    return output
        return super()._reduce(
            tensor, average, name, op, prescale, postscale, process_set, in_place, wait
        )


_collectives: Collectives[Any] = _Arrays(_choose)

allreduce = _collectives.allreduce
allreduce_async = _collectives.allreduce_async
allreduce_ = _collectives.allreduce_
allreduce_async_ = _collectives.allreduce_async_
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
broadcast = _collectives.broadcast
broadcast_async = _collectives.broadcast_async
broadcast_ = _collectives.broadcast_
broadcast_async_ = _collectives.broadcast_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
