"""Loads the C++ side of this door: torch's allocations in the arena.

The library is built once for each version of torch (`horoacc.ops_build`). It has a C interface, so
that nothing of Python is compiled into it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from horoacc import basics, ops_build, settings

_MODES = {"gradients": 1, "all": 2}


def build_if_needed() -> Path:
    """Builds the library unless that has been done for this torch.

    Returns:
        Its path.

    Raises:
        OpsBuildError: There is no compiler, or it failed.
    """
    sources = ops_build.sources_of("torch_ops")
    return ops_build.ensure_built("torch", sources, lambda output: _compiler(sources, output))


def _compiler(sources: list[Path], output: Path) -> list[str]:
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    command = [
        os.environ.get("CXX", "g++"), "-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra",
        "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        "-isystem", str(root / "include"),
        "-isystem", str(root / "include" / "torch" / "csrc" / "api" / "include"),
        "-isystem", sysconfig.get_paths()["include"],
        "-I", str(ops_build.source_folder("csrc")),
    ]  # fmt: skip
    command += [str(source) for source in sources if source.suffix == ".cc"]
    # By soname: the process has these libraries before it loads this one. The core's functions are
    # found because they are global by then.
    command += ["-L", str(root / "lib"), "-l:libtorch_cpu.so", "-l:libc10.so"]
    return [*command, "-o", str(output)]


@functools.cache
def _library() -> ctypes.CDLL:
    # The core's functions must be global before a library that uses them is loaded.
    ctypes.CDLL(str(ops_build.core_library()), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(build_if_needed()))
    library.ha_torch_attach.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.ha_torch_attach.restype = None
    library.ha_torch_register_sizes.argtypes = [ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]
    library.ha_torch_register_sizes.restype = None
    return library


class _Attached:
    """The engine from whose arena torch allocates now."""

    address = 0
    failed = False


def attach() -> bool:
    """Lets torch's CPU allocator use the arena of this process's engine, as HOROACC_ARENA says.

    Without a compiler the arena stays off, after a warning: tensors are then copied.

    Returns:
        Whether it does: not for a job of one rank, nor with HOROACC_ARENA=off.
    """
    mode = str(settings.read(os.environ)["arena"])
    if mode == "off" or basics.size() == 1 or _Attached.failed:
        return False
    address = basics.engine().address
    if address != _Attached.address:
        try:
            _library().ha_torch_attach(address, _MODES[mode])
        except (ops_build.OpsBuildError, OSError) as error:
            _Attached.failed = True
            warnings.warn(f"gradients are copied, not reduced in place: {error}", stacklevel=2)
            return False
        _Attached.address = address
        basics.before_shutdown(detach)
    return True


def detach() -> None:
    """Stops taking new blocks from the arena, as `shutdown()` does. Those in use stay valid."""
    if _Attached.address:
        _library().ha_torch_attach(None, 0)
        _Attached.address = 0


def register_gradients(params: Iterable[torch.Tensor]) -> None:
    """Tells the allocator how large the gradients of these parameters are.

    Args:
        params: Parameters whose gradients will be reduced.
    """
    if not _Attached.address:
        return
    sizes = {param.numel() * param.element_size() for param in params}
    array = (ctypes.c_size_t * len(sizes))(*sizes)
    _library().ha_torch_register_sizes(array, len(sizes))
