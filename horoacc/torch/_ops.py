"""Loads the C++ side of this frontend: allocations in the arena, and hooks on gradients.

The library is built once for each version of torch (`horoacc.ops_build`). It has a C interface, so
that nothing of Python is compiled into it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from horoacc import ops_build, process, settings
from horoacc.compression import Compressor

if TYPE_CHECKING:
    from horoacc._core import Engine

PlainCall = Callable[[int, Any, Any, Any, int, Any, Any, "int | None", bool, bool, bool], Any]

_MODES = {"gradients": 1, "all": 2}


def build_if_needed() -> Path:
    """Builds the library unless that has been done for this torch, and gives its path."""
    sources = ops_build.sources_of("torch_ops")
    return ops_build.ensure_built("torch", sources, lambda output: _compiler(sources, output))


def _compiler(sources: list[Path], output: Path) -> list[str]:
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    flags = [
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-isystem", str(root / "include"),
        "-isystem", sysconfig.get_paths()["include"],
    ]  # fmt: skip
    # By soname: the process has these libraries before it loads this one. The core's functions are
    # found because they are global by then.
    libraries = ["-l:libtorch_cpu.so", "-l:libc10.so", "-l:libtorch_python.so"]
    return ops_build.one_unit_command(sources, output, flags, ["-L", str(root / "lib"), *libraries])


@functools.cache
def library() -> ctypes.CDLL | None:
    """Loads the library; None, after a warning, where that fails: gradients are then copied."""
    try:
        # The core's functions must be global before a library that uses them is loaded.
        ctypes.CDLL(str(ops_build.core_library()), mode=ctypes.RTLD_GLOBAL)
        return _declare(ctypes.CDLL(str(build_if_needed())))
    except (ops_build.OpsBuildError, OSError) as error:
        warnings.warn(f"torch's gradients take a slower way: {error}", stacklevel=2)
        return None


@functools.cache
def python_library() -> ctypes.PyDLL:
    """Loads the functions of the library that give and take Python objects, or raises why not."""
    ctypes.CDLL(str(ops_build.core_library()), mode=ctypes.RTLD_GLOBAL)
    found = ctypes.PyDLL(str(build_if_needed()))
    found.ha_torch_backend.restype = ctypes.py_object
    found.ha_torch_backend.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_size_t,
        ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_char_p,
    ]  # fmt: skip
    found.ha_torch_plain_call.restype = ctypes.py_object
    found.ha_torch_plain_call.argtypes = [ctypes.py_object]
    return found


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    sizes = ctypes.POINTER(size)
    for name, result, arguments in (
        ("attach", None, [pointer, integer]),
        ("register_sizes", None, [sizes, size]),
        ("buckets", None, [integer]),
        ("hooks_create", pointer, [pointer, integer, integer, ctypes.c_double, ctypes.c_double,
                                   ctypes.POINTER(pointer), ctypes.POINTER(ctypes.c_char_p), size,
                                   ctypes.c_char_p, ctypes.py_object]),
        ("hooks_accumulated", integer, [pointer, size]),
        ("hooks_submit", None, [pointer, size]),
        ("hooks_touched", integer, [pointer]),
        ("hooks_in_flight", integer, [pointer]),
        ("hooks_missing", size, [pointer, sizes]),
        ("hooks_wait", integer, [pointer, ctypes.c_double, pointer]),
        ("hooks_changed", ctypes.c_ssize_t, [pointer]),
        ("hooks_restart", None, [pointer]),
        ("hooks_destroy", None, [pointer]),
    ):  # fmt: skip
        function = getattr(found, f"ha_torch_{name}")
        function.restype = result
        function.argtypes = arguments
    return found


class Attached:
    """The engine that torch's side works with now, and what it brings; None and 0 without one."""

    engine: Engine | None = None
    plain_call: PlainCall | None = None
    """Makes the plain case of a call (torch_ops/plain_calls.cc); its result, or handle and result;
    None, and nothing was submitted, if the case is not plain."""
    arena = 0
    """The engine's address, while torch allocates in its arena."""


def attach() -> bool:
    """Lets torch's side work with this process's engine: plain calls, and the arena.

    Says whether torch's CPU allocator uses the arena: as HOROACC_ARENA says, and not for a job of
    one rank.
    """
    mode = str(settings.read(os.environ)["arena"])
    if process.position().size == 1 or (found := library()) is None:
        return False
    engine = process.engine()  # no caller gets it after detach()
    if engine is not Attached.engine:
        if mode != "off":
            Attached.arena = engine.address
            found.ha_torch_attach(Attached.arena, _MODES[mode])
        Attached.engine = engine
        Attached.plain_call = python_library().ha_torch_plain_call(engine.calls)
        process.before_shutdown(detach)
    return mode != "off"


def detach() -> None:
    """Ends that, as `shutdown()` does. The arena's blocks that are in use stay valid."""
    Attached.engine = Attached.plain_call = None
    if Attached.arena and (found := library()) is not None:
        found.ha_torch_attach(None, 0)
        Attached.arena = 0


def _detach_in_child() -> None:
    Attached.engine = Attached.plain_call = None  # the allocator knows by itself


os.register_at_fork(after_in_child=_detach_in_child)


def register_gradients(params: Iterable[torch.Tensor], compression: type[Compressor]) -> None:
    """Tells the allocator how large the gradients of these parameters are, and their copies."""
    found = library() if Attached.arena else None
    if found is None:
        return
    sizes = set()
    for param in params:
        sent, _ = compression.compress(torch.empty(0, dtype=param.dtype))
        sizes |= {param.numel() * param.element_size(), param.numel() * sent.element_size()}
    array = (ctypes.c_size_t * len(sizes))(*sizes)
    found.ha_torch_register_sizes(array, len(sizes))
