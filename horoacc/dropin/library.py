"""`_basics.MPI_LIB_CTYPES`: the names of Horovod's C library that tools call through ctypes.

The functions here are this package's own, as C functions: they can be called like the library's,
their `restype` can be set, and they can be handed on as function pointers. As there, what cannot be
answered is -1, or false.
"""

from __future__ import annotations

import ctypes
import functools
import traceback
from collections.abc import Callable
from typing import Any

from horoacc import basics, builds, dtypes, process_sets

_Ints = ctypes.POINTER(ctypes.c_int)


def _add_process_set(ranks: Any, count: int) -> int:
    return process_sets.add_process_set(ranks[:count]).process_set_id or 0


def _remove_process_set(number: int) -> int:
    process_sets.remove_process_set(process_sets.registered(number))
    return number


def _init(ranks: Any, count: int, members: Any, sizes: Any, sets: int) -> bool:
    added, begin = [], 0
    for size in sizes[:sets] if sets > 0 else []:
        added.append(process_sets.ProcessSet(members[begin : begin + size]))
        begin += size
    basics.init(ranks[:count] if count > 0 else None, process_sets=added or None)
    return True


def _start_timeline(path: bytes, cycles: bool) -> int:
    basics.start_timeline(path.decode(), cycles)
    return 0


def _stop_timeline() -> int:
    basics.stop_timeline()
    return 0


def _write(array: Any, values: list[int]) -> int:
    for index, value in enumerate(values):
        array[index] = value
    return 0


def _included(number: int) -> int:
    return int(bool(process_sets.registered(number).included()))


_ASKED: dict[str, tuple[Any, Callable[..., Any], tuple[Any, ...]]] = {
    **{name: (ctypes.c_int, getattr(basics, name), ())
       for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
                    "is_homogeneous")},
    **{name: (ctypes.c_bool, getattr(builds, name), ())
       for name in ("mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "ddl_built",
                    "ccl_built", "cuda_built", "rocm_built")},
    **{f"reduce_op_{op.lower()}": (ctypes.c_int, functools.partial(int, number), ())
       for number, op in dtypes.OP_NAMES.items()},
    "init": (ctypes.c_bool, _init, (_Ints, ctypes.c_int, _Ints, _Ints, ctypes.c_int)),
    "shutdown": (None, basics.shutdown, ()),
    "is_initialized": (ctypes.c_bool, basics.is_initialized, ()),
    "mpi_threads_supported": (ctypes.c_int, builds.mpi_threads_supported, ()),
    "nccl_built": (ctypes.c_int, builds.nccl_built, ()),
    "start_timeline": (ctypes.c_int, _start_timeline, (ctypes.c_char_p, ctypes.c_bool)),
    "stop_timeline": (ctypes.c_int, _stop_timeline, ()),
    "add_process_set": (ctypes.c_int, _add_process_set, (_Ints, ctypes.c_int)),
    "remove_process_set": (ctypes.c_int, _remove_process_set, (ctypes.c_int,)),
    "process_set_rank": (ctypes.c_int, lambda number: process_sets.registered(number).rank(),
                         (ctypes.c_int,)),
    "process_set_size": (ctypes.c_int, lambda number: process_sets.registered(number).size(),
                         (ctypes.c_int,)),
    "process_set_included": (ctypes.c_int, _included, (ctypes.c_int,)),
    "number_of_process_sets": (ctypes.c_int, lambda: len(process_sets.ids_and_ranks()), ()),
    "process_set_ids": (ctypes.c_int, lambda ids: _write(
        ids, list(process_sets.ids_and_ranks())), (_Ints,)),
    "process_set_ranks": (ctypes.c_int, lambda number, ranks: _write(
        ranks, process_sets.ids_and_ranks()[number]), (ctypes.c_int, _Ints)),
}  # fmt: skip
"""By name without `horovod_`: result type, function, argument types."""


class Library:
    """What `ctypes.CDLL` would give for Horovod's library; names that are not there: `in dir()`."""

    def __getattr__(self, name: str) -> Any:
        """Makes a function when it is first asked for.

        Args:
            name: Its name in Horovod's `operations.h`.

        Returns:
            A C function.

        Raises:
            AttributeError: There is none; what takes an MPI communicator by its address is not
                here, for the core does not link MPI.
        """
        known = _ASKED.get(name.removeprefix("horovod_"))
        if known is None or not name.startswith("horovod_"):
            raise AttributeError(f"HoroACC has no C function {name!r}; see horovod.common.basics")
        result, answer, takes = known
        function = ctypes.CFUNCTYPE(result, *takes)(_without_raising(answer, result))
        setattr(self, name, function)
        return function

    def __dir__(self) -> list[str]:
        return [f"horovod_{name}" for name in _ASKED]


def _without_raising(answer: Callable[..., Any], result: Any) -> Callable[..., Any]:
    @functools.wraps(answer)
    def call(*given: Any) -> Any:
        try:
            found = answer(*given)
        except Exception as error:
            if not isinstance(error, ValueError):  # init() was not called, or there is no such set
                traceback.print_exc()
            return {ctypes.c_bool: False, None: None}.get(result, -1)
        return None if result is None else result(found if found is not None else -1).value

    return call
