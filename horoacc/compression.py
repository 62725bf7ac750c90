"""Gradient compression: a narrower type while a gradient travels.

The classes know no framework: `narrowing` is told which tensors are wide, and how to cast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Compressor:
    """Interface for compressing and decompressing a tensor."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Makes the tensor smaller.

        Args:
            tensor: The tensor to send.

        Returns:
            The compressed tensor and a context that `decompress` needs.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undoes `compress`.

        Args:
            tensor: A compressed tensor.
            ctx: The context that `compress` returned with it.

        Returns:
            A tensor of the original type.
        """
        raise NotImplementedError


class Codec(Compressor):
    """A compressor of which the results cannot be added up.

    The ranks exchange encoded tensors, add up the decoded ones, and exchange the sum; see
    `horoacc.collectives.coded_allreduce`. `compress` and `decompress` show how much is lost.
    """

    @staticmethod
    def encode(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Encodes a vector. Numbers that are not finite must not be decoded as finite ones.

        Args:
            values: The vector.

        Returns:
            As many bytes as `encoded_bytes` says.
        """
        raise NotImplementedError

    @staticmethod
    def decode(code: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.float32]:
        """Undoes `encode`, but for its losses.

        Args:
            code: The result of `encode`.
            count: The length of the vector.

        Returns:
            The vector.
        """
        raise NotImplementedError

    @staticmethod
    def encoded_bytes(count: int) -> int:
        """Says how many bytes `encode` makes of a vector.

        Args:
            count: The length of the vector.

        Returns:
            The number of bytes.
        """
        raise NotImplementedError


def is_codec(compression: Any) -> bool:
    """Says whether the `compression` of a call is a codec."""
    return isinstance(compression, type) and issubclass(compression, Codec)


def check_no_codec(compression: Any) -> None:
    """Raises ValueError if a collective that has no way for codecs was given one."""
    if is_codec(compression):
        raise ValueError(f"{compression.__name__} is for allreduce, not for reducescatter.")


class NoneCompressor(Compressor):
    """Leaves the tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


def decompress_all(
    compression: type[Compressor], tensors: Sequence[Any], compressed: Sequence[tuple[Any, Any]]
) -> list[Any]:
    """Decompresses the results of a grouped call; `compressed` are the results of `compress`."""
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(tensors, compressed, strict=True)
    ]


_NARROWER = {
    "FP16Compressor": "Sends float32 and float64 as float16.",
    "BF16Compressor": "Sends float32 and float64 as bfloat16, which has the range of float32.",
}


def narrowing(
    name: str,
    module: str,
    is_wide: Callable[[Any], bool],
    narrow: Any,
    cast: Callable[[Any, Any], Any],
) -> type[Compressor]:
    """Makes the compressor class of `module` that casts wide tensors to the type `narrow`.

    Its context is the tensor's original type, or None if it was left alone.
    """

    def compress(tensor: Any) -> tuple[Any, Any]:
        return (cast(tensor, narrow), tensor.dtype) if is_wide(tensor) else (tensor, None)

    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cast(tensor, ctx)

    return type(
        name,
        (Compressor,),
        {
            "__doc__": _NARROWER[name],
            "__module__": module,
            "compress": staticmethod(compress),
            "decompress": staticmethod(decompress),
        },
    )
