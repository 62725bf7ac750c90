"""What a library's tensors must be able to do for the collectives to take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from horoacc._core import Output

Restore = Callable[[Any], Any]
View = tuple[int, tuple[int, ...], int]
"""Pointer, shape and the core's number of the type."""


class Tensors(Protocol):
    """What a library's tensors must be able to do. `Any` stands for its contiguous CPU tensor."""

    def readable(self, tensor: Any) -> tuple[Any, Restore | None]:
        """Gives a contiguous CPU tensor with the caller's values, and what makes a result of the
        caller's kind out of such a tensor (None: it is one). ValueError if there is no way.
        """

    def writable(self, tensor: Any) -> Any:
        """Checks that the caller's tensor can be written in place; ValueError if not."""

    def view(self, tensor: Any) -> View:
        """Says where a contiguous tensor lies and what it is; ValueError for a foreign type."""

    def address(self, tensor: Any) -> int:
        """Says where a tensor lies that `view` would take."""

    def empty_like(self, tensor: Any) -> Any:
        """Makes a tensor for an output."""

    def owned(self, output: Output) -> Any:
        """Makes a tensor of memory that the engine allocated."""

    def numbers(self, tensor: Any) -> npt.NDArray[np.float32] | None:
        """Gives a caller's real floating-point tensor as a vector of float32, which may share
        memory; None for other types.
        """

    def of_numbers(self, numbers: npt.NDArray[np.float32], like: Any) -> Any:
        """Makes a tensor of the type and shape of `like` from such a vector."""

    def counts(self, rows: Sequence[int]) -> Any:
        """Makes the int32 vector of received splits."""
