"""Gradient compression of TensorFlow's tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoacc import eight_bit
from horoacc.compression import Codec, Compressor, NoneCompressor, narrowing

__all__ = [
    "BF16Compressor",
    "Codec",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Int8Compressor",
    "NoneCompressor",
]


def _is_wide(tensor: Any) -> bool:
    return tensor.dtype in (tf.float32, tf.float64)


FP16Compressor = narrowing("FP16Compressor", __name__, _is_wide, tf.float16, tf.cast)
BF16Compressor = narrowing("BF16Compressor", __name__, _is_wide, tf.bfloat16, tf.cast)


class Int8Compressor(eight_bit.Int8Compressor):
    """Sends floating-point numbers as 8-bit integers; see `horoacc.eight_bit`."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Encodes an eager tensor; the context is its type and shape."""
        if not tensor.dtype.is_floating:
            return tensor, None
        values = tf.reshape(tf.cast(tensor, tf.float32), [-1]).numpy()
        return tf.constant(eight_bit.Int8Compressor.encode(values)), (tensor.dtype, tensor.shape)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Decodes an eager tensor."""
        if ctx is None:
            return tensor
        dtype, shape = ctx
        values = eight_bit.Int8Compressor.decode(tensor.numpy(), shape.num_elements())
        return tf.reshape(tf.cast(values, dtype), shape)


class Compression:
    """The compressors of TensorFlow's tensors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
