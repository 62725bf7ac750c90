"""The operations on a library's tensors that the collectives need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from horoacc._core import Output

Restore = Callable[[Any], Any]
View = tuple[int, tuple[int, ...], int]
"""Pointer, shape and the core's number of the type."""
Place = tuple[int, int]
"""A GPU's number, and a stream of it as an address."""


class Tensors(Protocol):
    """The operations on a library's tensors. `Any` stands for its contiguous tensor, on the
    CPU or on a GPU.
    """

    def readable(self, tensor: Any) -> tuple[Any, Restore | None]:
        """Gives a contiguous tensor with the caller's values, and a function from such a tensor to
        the caller's kind (None: they are the same). ValueError if there is no way.
        """

    def writable(self, tensor: Any) -> Any:
        """Checks that the caller's tensor can be written in place; ValueError if not."""

    def view(self, tensor: Any) -> View:
        """Says where a contiguous tensor lies and what it is; ValueError for a foreign type."""

    def place(self, tensor: Any) -> Place | None:
        """Says on which GPU a tensor lies that `view` would take, and on which stream the caller
        works there; None for the CPU.
        """

    def stream(self, device: int) -> int:
        """Gives the stream on which the caller works on a GPU."""

    def address(self, tensor: Any) -> int:
        """Says where a tensor lies that `view` would take."""

    def empty_like(self, tensor: Any) -> Any:
        """Makes a tensor for an output."""

    def owned(self, output: Output, place: Place | None) -> Any:
        """Makes a tensor of a result that the engine allocated, for a call whose tensors lie there:
        on the GPU, or, if GPUs did not move it, on the CPU.
        """

    def numbers(self, tensor: Any) -> npt.NDArray[np.float32] | None:
        """Gives a caller's real floating-point tensor as a vector of float32, which may share
        memory; None for other types.
        """

    def of_numbers(self, numbers: npt.NDArray[np.float32], like: Any) -> Any:
        """Makes a tensor of the type and shape of `like` from such a vector."""

    def counts(self, rows: Sequence[int]) -> Any:
        """Makes the int32 vector of received splits."""


def stream_of(kind: Tensors, place: Place | None) -> Callable[[], int] | None:
    """Gives a function that finds the stream on which a result will be used; None for the CPU."""
    return None if place is None else functools.partial(kind.stream, place[0])


def place_of_all(kind: Tensors, tensors: Sequence[Any]) -> Place | None:
    """Gives the GPU and the stream of a call's tensors, or None for the CPU.

    ValueError if they lie on different devices.
    """
    place, *others = [kind.place(tensor) for tensor in tensors]
    if any(other != place for other in others):
        raise ValueError("The tensors of a call lie on different devices.")
    return place
