"""Loads TensorFlow's ops of this frontend, and tells them which engine to use.

The library is built once for each version of TensorFlow (`horoacc.ops_build`). It also redirects
TensorFlow's CPU allocator to the arena, which works only before TensorFlow has allocated anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from horoacc import builds, ops_build, process, settings

_MODES = {"gradients": 1, "all": 2}


def build_if_needed() -> Path:
    """Builds the library unless that has been done for this TensorFlow, and gives its path."""
    sources = ops_build.sources_of("tensorflow_ops")
    return ops_build.ensure_built("tensorflow", sources, lambda output: _compiler(sources, output))


def _compiler(sources: list[Path], output: Path) -> list[str]:
    defines = [flag for flag in tf.sysconfig.get_compile_flags() if flag.startswith("-D")]
    flags = [*defines, "-isystem", tf.sysconfig.get_include()]
    # By soname, as torch's ops do it: the process has these libraries before it loads this one.
    return ops_build.one_unit_command(sources, output, flags, tf.sysconfig.get_link_flags())


@functools.cache
def library() -> Any:
    """Loads the ops: a module with a function for each.

    OpsBuildError if they cannot be built, without which there is no way from a graph to the core;
    tf.errors.NotFoundError if the library does not fit the TensorFlow that is installed.
    """
    _core()
    return tf.load_op_library(str(build_if_needed()))


@functools.cache
def _core() -> ctypes.CDLL:
    # The core's functions must be global before a library that uses them is loaded.
    return ctypes.CDLL(str(ops_build.core_library()), mode=ctypes.RTLD_GLOBAL)


@functools.cache
def _control() -> ctypes.CDLL:
    library()
    found = ctypes.CDLL(str(build_if_needed()))
    found.ha_tensorflow_attach.restype = None
    found.ha_tensorflow_attach.argtypes = [ctypes.c_void_p]
    found.ha_tensorflow_arena.restype = None
    found.ha_tensorflow_arena.argtypes = [ctypes.c_void_p, ctypes.c_int]
    found.ha_tensorflow_register.restype = None
    found.ha_tensorflow_register.argtypes = [ctypes.c_char_p]
    return found


def run_on(device_type: str) -> None:
    """Has the ops run where their tensors lie on devices of a type, which have CUDA's GPUs.

    Elsewhere TensorFlow copies tensors to the CPU.
    """
    _control().ha_tensorflow_register(device_type.encode())


@functools.cache
def redirect() -> bool:
    """Puts the arena in front of TensorFlow's CPU allocator, for engines to come.

    Says whether that was done: not if TensorFlow has allocated before.
    """
    return bool(_control().ha_tensorflow_redirect())


def redirect_early() -> None:
    """As `redirect`, at import: errors are raised later, when the ops are needed."""
    with contextlib.suppress(ops_build.OpsBuildError, tf.errors.NotFoundError):
        redirect()


@functools.cache
def _raise() -> Callable[[], None]:
    # PyDLL keeps the GIL, and raises the Python error that the function has set.
    library()
    found = ctypes.PyDLL(str(build_if_needed())).ha_tensorflow_raise
    found.restype = None
    return found


def raise_interrupt() -> None:
    """Raises the exception of a signal's handler that ran while an eager call waited, if any."""
    _raise()()


class _Attached:
    """The engine that the ops use now."""

    address = 0


def attach() -> None:
    """Has the ops use the engine of this process, if it has one. A second call does nothing.

    TensorFlow's CPU allocator uses its arena as HOROACC_ARENA says. Tensors of GPUs stay
    there if TensorFlow and HoroACC were built for CUDA.
    """
    if not process.entered():
        return
    control = _control()
    address = process.engine().address  # no caller gets it after detach()
    if address != _Attached.address:
        control.ha_tensorflow_attach(address)
        control.ha_tensorflow_arena(*_arena(address))
        # Other builds have GPUs of that type, too, from plug-ins.
        if tf.test.is_built_with_cuda() and builds.cuda_built():
            run_on("GPU")
        _Attached.address = address
        process.before_shutdown(detach)


def _arena(address: int) -> tuple[int | None, int]:
    mode = str(settings.read(os.environ)["arena"])
    if mode == "off" or process.position().size == 1:
        return None, 0
    if redirect():
        return address, _MODES[mode]
    warnings.warn(
        "TensorFlow had allocated memory before horoacc.tensorflow was imported: its gradients are "
        "copied instead of being reduced where they are. Import it, or call horoacc.keras.init(), "
        "before the first tensor is made.",
        stacklevel=4,
    )
    return None, 0


def detach() -> None:
    """Has the ops say that `init()` was not called, as after `shutdown()`. Tensors stay valid."""
    if _Attached.address:
        _control().ha_tensorflow_attach(None)
        _control().ha_tensorflow_arena(None, 0)
        _Attached.address = 0


# In a forked child the engine's threads are not there.
os.register_at_fork(after_in_child=detach)
