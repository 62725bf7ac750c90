"""NumPy arrays in the arena, for programs that measure: training's come from torch's allocator."""

from __future__ import annotations

import ctypes

import numpy as np

from horoacc import basics, ops_build


class ArenaBlock:
    """Memory that the ranks of the host reduce in place, as an array's."""

    def __init__(self, count: int, dtype: str = "<f4") -> None:
        """Takes memory for so many elements.

        Raises:
            MemoryError: The arena has not so much.
        """
        core = ctypes.CDLL(str(ops_build.core_library()))
        self._free = core.ha_arena_free
        self._free.restype, self._free.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
        allocate = core.ha_arena_allocate
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
        self._engine = basics.engine().address
        bytes_ = max(1, count) * np.dtype(dtype).itemsize
        self._memory = allocate(self._engine, bytes_)
        if not self._memory:
            raise MemoryError(f"the arena has no {bytes_} bytes")
        self.__array_interface__ = {
            "shape": (count,), "typestr": dtype, "data": (self._memory, False), "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_memory", None) and basics.is_initialized():
            self._free(self._engine, self._memory)
