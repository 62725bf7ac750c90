"""Gradient compression of torch's tensors."""

from __future__ import annotations

from typing import Any

import torch

from horoacc import eight_bit
from horoacc.compression import Codec, Compressor, NoneCompressor, narrowing
from horoacc.torch.tensors import torch_tensors

__all__ = [
    "BF16Compressor",
    "Codec",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
]


def _is_wide(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


FP16Compressor = narrowing("FP16Compressor", __name__, _is_wide, torch.float16, torch.Tensor.to)
BF16Compressor = narrowing("BF16Compressor", __name__, _is_wide, torch.bfloat16, torch.Tensor.to)


class Int8Compressor(eight_bit.Int8Compressor):
    """Sends floating-point numbers as 8-bit integers; see `horoacc.eight_bit`."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Encodes a tensor; the context is its type, device and shape."""
        values = torch_tensors.numbers(tensor)
        if values is None:
            return tensor, None
        code = torch.from_numpy(eight_bit.Int8Compressor.encode(values))
        return code, (tensor.dtype, tensor.device, tensor.shape)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Decodes a tensor."""
        if ctx is None:
            return tensor
        dtype, device, shape = ctx
        values = eight_bit.Int8Compressor.decode(tensor.numpy(), shape.numel())
        return torch.from_numpy(values).to(device, dtype).reshape(shape)


class Compression:
    """The compressors of torch's tensors.

    Attributes:
        none: Leaves them as they are.
        fp16: Sends float32 and float64 as float16.
        bf16: Sends float32 and float64 as bfloat16, which has the range of float32.
        int8: A codec: sends floating-point numbers as 8-bit integers with a scale for 256 of them.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
