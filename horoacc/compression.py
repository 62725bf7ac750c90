"""Gradient compression: a narrower type while a gradient travels.

The classes know no framework: one says how to cast by giving three functions to `narrowing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Compressor:
    """Interface for compressing and decompressing a tensor."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Makes the tensor smaller.

        Args:
            tensor: What is to travel.

        Returns:
            The compressed tensor and a context that `decompress` needs.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Undoes `compress`.

        Args:
            tensor: A compressed tensor.
            ctx: What `compress` returned with it.

        Returns:
            A tensor of the original type.
        """
        raise NotImplementedError


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
    """Decompresses the results of a grouped call.

    Args:
        compression: What compressed them.
        tensors: The results.
        compressed: What `compress` gave for each.

    Returns:
        The results in their original types.
    """
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(tensors, compressed, strict=True)
    ]


def narrowing(
    name: str,
    doc: str,
    is_wide: Callable[[Any], bool],
    narrow: Callable[[Any], Any],
    widen: Callable[[Any, Any], Any],
    module: str,
) -> type[Compressor]:
    """Makes a compressor class that casts wide floating-point tensors to a narrower type.

    Args:
        name: The class name.
        doc: Its docstring.
        is_wide: Whether a tensor's type is to be narrowed.
        narrow: Casts a tensor to the narrow type.
        widen: Casts a tensor to the given original type.
        module: The module that the class says it is from.

    Returns:
        The class. Its context is the tensor's original type, or None if it was left alone.
    """

    def compress(tensor: Any) -> tuple[Any, Any]:
        return (narrow(tensor), tensor.dtype) if is_wide(tensor) else (tensor, None)

    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else widen(tensor, ctx)

    return type(
        name,
        (Compressor,),
        {
            "__doc__": doc,
            "__module__": module,
            "compress": staticmethod(compress),
            "decompress": staticmethod(decompress),
        },
    )
