"""The collectives of NumPy arrays, and of anything that NumPy can look into.

A call gives back the kind of array that it was given, where that library can take one over from
NumPy. Tensors of torch are treated as `horoacc.torch` treats them, but without autograd.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horoacc.collectives import Collectives, barrier
from horoacc.compression import NoneCompressor, narrowing
from horoacc.dtypes import number_of, numpy_dtype
from horoacc.foreign import Array, as_array, restorer
from horoacc.handles import poll, synchronize
from horoacc.tensors import Restore, Tensors, View

if TYPE_CHECKING:
    from horoacc._core import Output

__all__ = [
    "Compression",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

FP16Compressor = narrowing(
    "FP16Compressor",
    "Sends float32 and float64 as float16.",
    lambda tensor: getattr(tensor, "dtype", None) in (np.float32, np.float64),
    lambda tensor: tensor.astype(np.float16),
    lambda tensor, dtype: tensor.astype(dtype),
    __name__,
)


class Compression:
    """The compressors of arrays."""

    none = NoneCompressor
    fp16 = FP16Compressor


class NumpyTensors:
    """NumPy arrays, and what NumPy can look into."""

    def readable(self, tensor: Any) -> tuple[Array, Restore | None]:
        """See `Tensors`."""
        if isinstance(tensor, np.ndarray):
            return np.asarray(tensor, order="C"), None
        return np.asarray(as_array(tensor), order="C"), restorer(tensor)

    def writable(self, tensor: Any) -> Array:
        """See `Tensors`."""
        array = tensor if isinstance(tensor, np.ndarray) else as_array(tensor)
        if not isinstance(tensor, np.ndarray) and not hasattr(tensor, "__dlpack__"):
            raise ValueError(f"A {type(tensor).__name__} cannot be written in place.")
        if not array.flags.c_contiguous:
            raise ValueError(
                "Tensor is required to be contiguous, but its shape is "
                f"{array.shape} and its strides are {array.strides}."
            )
        if not array.flags.writeable:
            raise ValueError("The array is read-only, so it cannot be written in place.")
        return array

    def view(self, tensor: Array) -> View:
        """See `Tensors`."""
        return tensor.__array_interface__["data"][0], tensor.shape, number_of(tensor.dtype)

    def empty_like(self, tensor: Array) -> Array:
        """See `Tensors`."""
        return np.empty_like(tensor)

    def owned(self, output: Output) -> Array:
        """See `Tensors`."""
        dtype = numpy_dtype(output.dtype)
        if 0 in output.shape:
            return np.empty(output.shape, dtype)
        flat: Array = np.frombuffer(memoryview(output), np.uint8)  # type: ignore[arg-type]
        return flat.view(dtype).reshape(output.shape)

    def counts(self, rows: Sequence[int]) -> Array:
        """See `Tensors`."""
        return np.asarray(rows, np.int32)


_numpy_tensors = NumpyTensors()


def _choose(tensor: Any) -> Tensors:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return _numpy_tensors
    from horoacc.torch.tensors import torch_tensors  # noqa: PLC0415 - torch is loaded already

    return torch_tensors


_collectives = Collectives(_choose)

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
