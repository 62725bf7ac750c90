"""NumPy arrays in the arena: no call makes them, because torch's allocator alone takes from it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from horoacc import basics, ops_build

Array = npt.NDArray[Any]


class Block:
    """Memory of the arena that lives as long as an array on it."""

    def __init__(self, like: Array) -> None:
        self._core = ctypes.CDLL(str(ops_build.core_library()))
        self._core.ha_arena_allocate.restype = ctypes.c_void_p
        self._core.ha_arena_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._core.ha_arena_free.restype = None
        self._core.ha_arena_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._engine = basics.engine().address
        self._memory = self._core.ha_arena_allocate(self._engine, max(1, like.nbytes))
        if not self._memory:
            raise MemoryError(f"the arena has no {like.nbytes} bytes")
        self.__array_interface__ = {
            "shape": like.shape, "typestr": like.dtype.str, "data": (self._memory, False),
            "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_memory", None):
            self._core.ha_arena_free(self._engine, self._memory)


def in_arena(array: Array) -> Array:
    """Copies an array into the arena."""
    placed = np.asarray(Block(array))
    placed[...] = array
    return placed


def expected() -> bool:
    """Whether this pool is the one whose tensors lie in the arena."""
    return os.environ.get("HOROACC_ARENA") == "all"


def placed(array: Array) -> Array:
    """Copies an array to where the tensors of this pool lie."""
    return in_arena(array) if expected() else array.copy()
