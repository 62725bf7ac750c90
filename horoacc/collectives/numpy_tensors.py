"""NumPy arrays, and objects that NumPy can view as arrays, as the collectives see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horoacc.collectives.tensors import Place, Restore, View
from horoacc.dtypes import number_of, numpy_dtype
from horoacc.foreign import Array, as_array, restorer

if TYPE_CHECKING:
    from horoacc._core import Output


class NumpyTensors:
    """NumPy arrays, and objects that NumPy can view as arrays."""

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

    def place(self, tensor: Array) -> Place | None:
        """See `Tensors`."""
        return None

    def stream(self, device: int) -> int:
        """See `Tensors`."""
        raise ValueError(f"NumPy has no arrays on GPU {device}.")

    def address(self, tensor: Array) -> int:
        """See `Tensors`."""
        return tensor.__array_interface__["data"][0]  # type: ignore[no-any-return]

    def empty_like(self, tensor: Array) -> Array:
        """See `Tensors`."""
        return np.empty_like(tensor)

    def owned(self, output: Output, place: Place | None) -> Array:
        """See `Tensors`."""
        dtype = numpy_dtype(output.dtype)
        if 0 in output.shape:
            return np.empty(output.shape, dtype)
        flat: Array = np.frombuffer(memoryview(output), np.uint8)
        return flat.view(dtype).reshape(output.shape)

    def counts(self, rows: Sequence[int]) -> Array:
        """See `Tensors`."""
        return np.asarray(rows, np.int32)

    def numbers(self, tensor: Any) -> Array | None:
        """See `Tensors`."""
        array = as_array(tensor)
        if not np.issubdtype(array.dtype, np.floating):
            return None
        return np.asarray(array, np.float32).reshape(-1)

    def of_numbers(self, numbers: Array, like: Any) -> Any:
        """See `Tensors`."""
        array = as_array(like)
        restore = None if isinstance(like, np.ndarray) else restorer(like)
        result = numbers.astype(array.dtype).reshape(array.shape)
        return result if restore is None else restore(result)


numpy_tensors = NumpyTensors()
