"""Gradient compression of torch's tensors."""

from __future__ import annotations

import torch

from horoacc.compression import Compressor, NoneCompressor, narrowing

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]

_WIDE = (torch.float32, torch.float64)

FP16Compressor = narrowing(
    "FP16Compressor",
    "Sends float32 and float64 as float16.",
    lambda tensor: tensor.dtype in _WIDE,
    lambda tensor: tensor.to(torch.float16),
    lambda tensor, dtype: tensor.to(dtype),
    __name__,
)
BF16Compressor = narrowing(
    "BF16Compressor",
    "Sends float32 and float64 as bfloat16, which has the range of float32.",
    lambda tensor: tensor.dtype in _WIDE,
    lambda tensor: tensor.to(torch.bfloat16),
    lambda tensor, dtype: tensor.to(dtype),
    __name__,
)


class Compression:
    """The compressors of torch's tensors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
