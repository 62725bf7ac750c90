"""Eight bits a number: blocks of integers, each block with a scale of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from horoacc.compression import Codec
from horoacc.foreign import as_array

BLOCK = 256
"""Numbers that share a scale."""

Numbers = npt.NDArray[np.float32]
Code = npt.NDArray[np.uint8]


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


class Int8Compressor(Codec):
    """Sends floating-point numbers as integers from -127 to 127 with a float32 scale for 256.

    The error of a number is at most 1/254 of the largest in its block. `DistributedOptimizer` adds
    the loss of a step to the gradient of the next, so that nothing is lost for good.
    """

    @staticmethod
    def encode(values: Numbers) -> Code:
        """See `Codec.encode`."""
        count = values.size
        padded = np.zeros(_blocks(count) * BLOCK, np.float32)
        padded[:count] = values
        blocks = padded.reshape(-1, BLOCK)
        scales = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(127)
        # A block with an infinity or a NaN is decoded as infinities or NaNs only, on every rank.
        known = np.isfinite(scales) & (scales > 0)
        divisors = np.where(known, scales, np.float32(1))[:, None]
        numbers = np.where(known[:, None], blocks, np.float32(0)) / divisors
        codes = np.clip(np.rint(numbers), -127, 127).astype(np.int8)
        codes[~np.isfinite(scales)] = 1
        return np.concatenate([scales.view(np.uint8), codes.reshape(-1)[:count].view(np.uint8)])

    @staticmethod
    def decode(code: Code, count: int) -> Numbers:
        """See `Codec.decode`."""
        heads = 4 * _blocks(count)
        scales = code[:heads].copy().view(np.float32)
        numbers = code[heads:].view(np.int8).astype(np.float32)
        decoded: Numbers = numbers * np.repeat(scales, BLOCK)[:count]
        return decoded

    @staticmethod
    def encoded_bytes(count: int) -> int:
        """See `Codec.encoded_bytes`."""
        return 4 * _blocks(count) + count

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Encodes an array; the context is its type and shape."""
        array = as_array(tensor)
        values = np.asarray(array, np.float32).reshape(-1)
        return Int8Compressor.encode(values), (array.dtype, array.shape)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Decodes an array."""
        dtype, shape = ctx
        values = Int8Compressor.decode(as_array(tensor), int(np.prod(shape)))
        return values.astype(dtype).reshape(shape)
