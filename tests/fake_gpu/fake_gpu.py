"""A GPU that the host plays, for a torch without CUDA: `install()`."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fake_cuda import HERE, NCCL, ROOT, bridge, bridge_path, plugin

__all__ = ["ROOT", "install", "libraries", "nccl", "plugin"]


def nccl() -> Path:
    """Says where the NCCL that the host plays is built.

    Returns:
        The library's path.
    """
    return bridge_path(NCCL, "")


def libraries() -> Path:
    """Builds the fake GPU, torch's side of it and an NCCL, unless that has been done.

    Returns:
        Torch's side.
    """
    bridge(NCCL, "", ["-pthread"])
    home = Path(torch.__file__).parent
    flags = [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
             "-isystem", str(home / "include"), f"-L{home / 'lib'}",
             "-l:libtorch_cpu.so", "-l:libc10.so"]  # fmt: skip
    return bridge(HERE / "fake_torch.cc", torch.__version__, flags)


class FakeGpu:
    """The fake GPU of this process."""

    def __init__(self) -> None:
        """Loads it, and lets torch take it for a GPU."""
        side = libraries()
        self._cuda = ctypes.CDLL(str(plugin()), mode=ctypes.RTLD_GLOBAL)
        self._torch = ctypes.CDLL(str(side))
        self._torch.fake_torch_new_stream.restype = ctypes.c_int64
        self._torch.fake_torch_stream.restype = ctypes.c_int64
        self._torch.fake_torch_use_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
        self._cuda.fake_cuda_unpinned_bytes.restype = ctypes.c_size_t
        self._bodies: list[Any] = []  # of streams, which may still call them
        self._torch.fake_torch_install()
        torch.cuda._lazy_init = lambda: None
        torch.cuda.current_stream = self._current_stream
        torch.cuda.get_device_capability = lambda _: (8, 0)

    @property
    def unpinned_bytes(self) -> int:
        """Bytes that the plug-in copied from or to memory that was not pinned."""
        return int(self._cuda.fake_cuda_unpinned_bytes())

    @property
    def waits(self) -> int:
        """Streams that wait for an event or a word by now."""
        return int(self._cuda.fake_cuda_waits())

    def _current_stream(self, device: int = 0) -> types.SimpleNamespace:
        return types.SimpleNamespace(cuda_stream=self._torch.fake_torch_stream(device))

    @contextlib.contextmanager
    def stream(self, device: int = 0) -> Iterator[None]:
        """Works on a stream of its own."""
        before = self._torch.fake_torch_stream(device)
        self._torch.fake_torch_use_stream(device, self._torch.fake_torch_new_stream(device))
        try:
            yield
        finally:
            self._torch.fake_torch_use_stream(device, before)

    @contextlib.contextmanager
    def hold(self, device: int = 0) -> Iterator[None]:
        """Lets later work of the current stream run only afterwards."""
        gate = threading.Event()
        self._bodies.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait() and None))
        stream = ctypes.c_void_p(self._torch.fake_torch_stream(device))
        self._cuda.fake_cuda_launch(stream, self._bodies[-1], None)
        try:
            yield
        finally:
            gate.set()


@functools.cache
def install() -> FakeGpu:
    """Gives this process a fake GPU.

    Returns:
        The same one each time.
    """
    return FakeGpu()
