"""Tensors of torch, as the collectives see them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from horoacc.collectives.tensors import Place, Restore, View
from horoacc.dtypes import NAMES

if TYPE_CHECKING:
    from horoacc._core import Output

NUMBERS: dict[torch.dtype, int] = {
    getattr(torch, name): number for number, name in enumerate(NAMES)
}
"""The core's number of each type."""

_DTYPES: list[torch.dtype] = [getattr(torch, name) for name in NAMES]


class TorchTensors:
    """Contiguous tensors of torch, on the CPU or on a CUDA GPU."""

    def readable(self, tensor: Any) -> tuple[torch.Tensor, Restore | None]:
        """See `Tensors`."""
        # A conjugated view is contiguous, yet its memory holds other numbers.
        if not isinstance(tensor, torch.Tensor):
            _refuse(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        return tensor, functools.partial(_on_gpu, tensor.device) if tensor.is_cuda else None

    def writable(self, tensor: Any) -> torch.Tensor:
        """See `Tensors`."""
        if not isinstance(tensor, torch.Tensor):
            _refuse(tensor)
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("A conjugated or negated view cannot be written in place.")
        return tensor

    def view(self, tensor: torch.Tensor) -> View:
        """See `Tensors`."""
        number = NUMBERS.get(tensor.dtype)
        on_known_device = tensor.is_cpu or tensor.is_cuda
        if number is None or not on_known_device or tensor.layout is not torch.strided:
            _refuse(tensor)
        if not tensor.is_contiguous():
            raise ValueError(
                "Tensor is required to be contiguous, but its shape is "
                f"{tuple(tensor.shape)} and its strides are {tensor.stride()}."
            )
        return tensor.data_ptr(), tensor.shape, number

    def place(self, tensor: torch.Tensor) -> Place | None:
        """See `Tensors`."""
        if tensor.is_cpu:
            return None
        return tensor.device.index, self.stream(tensor.device.index)

    def stream(self, device: int) -> int:
        """See `Tensors`."""
        return torch.cuda.current_stream(device).cuda_stream

    def address(self, tensor: torch.Tensor) -> int:
        """See `Tensors`."""
        return tensor.data_ptr()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Tensors`."""
        return torch.empty_like(tensor)

    def owned(self, output: Output, place: Place | None) -> torch.Tensor:
        """See `Tensors`."""
        dtype = _DTYPES[output.dtype]
        if 0 in output.shape:
            return torch.empty(output.shape, dtype=dtype)
        if place is None or not output.on_gpu:
            return torch.frombuffer(output, dtype=dtype).view(output.shape)
        device = place[0]
        tensor = torch.empty(output.shape, dtype=dtype, device=torch.device("cuda", device))
        output.copy_to(tensor.data_ptr(), self.stream(device))
        return tensor

    def numbers(self, tensor: torch.Tensor) -> npt.NDArray[np.float32] | None:
        """See `Tensors`."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return None
        found: npt.NDArray[np.float32] = (
            tensor.detach().to("cpu", torch.float32).reshape(-1).numpy()
        )
        return found

    def of_numbers(self, numbers: npt.NDArray[np.float32], like: torch.Tensor) -> torch.Tensor:
        """See `Tensors`."""
        return torch.from_numpy(numbers).to(like.device, like.dtype).reshape(like.shape)

    def counts(self, rows: Sequence[int]) -> torch.Tensor:
        """See `Tensors`."""
        return torch.tensor(rows, dtype=torch.int32)


def _on_gpu(device: torch.device, result: torch.Tensor) -> torch.Tensor:
    return result.to(device)


def _refuse(tensor: Any) -> NoReturn:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A torch.Tensor is needed, not a {type(tensor).__name__}.")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"Tensor layout {tensor.layout} is not supported; sparse tensors have "
            "sparse_allreduce_async()."
        )
    if not tensor.is_cpu and not tensor.is_cuda:
        raise ValueError(
            f"Tensor device {tensor.device} is not supported; tensors must be on the CPU or on a "
            "CUDA GPU."
        )
    raise ValueError(f"Tensor type {tensor.dtype} is not supported.")


torch_tensors = TorchTensors()
