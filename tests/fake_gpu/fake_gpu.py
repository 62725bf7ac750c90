"""A GPU that the host plays, for a torch without CUDA: `install()`."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PLUGIN = (
    ROOT / "tests/cpp/fake_cuda.cc",
    ROOT / "tests/cpp/fake_kernels.cc",
    ROOT / "tests/cpp/fake_programs.cc",
    ROOT / "csrc/execute/cuda/kernel_plan.cc",
    ROOT / "csrc/execute/reduce_plan.cc",
    ROOT / "csrc/base/result.cc",
)
SOURCES = (
    HERE / "fake_torch.cc",
    *PLUGIN,
    *sorted((ROOT / "tests/cpp").glob("fake_*.h")),
    ROOT / "tests/cpp/host_cta.h",
    *sorted((ROOT / "csrc/execute").glob("*.h")),
    *sorted((ROOT / "csrc/execute/cuda").glob("*.h")),
)


@functools.cache
def plugin() -> Path:
    """Says where the fake GPU is built, for each state of its sources.

    Returns:
        The plug-in's path.
    """
    text = b"".join(source.read_bytes() for source in SOURCES) + torch.__version__.encode()
    return ROOT / "build" / "fake_gpu" / hashlib.sha256(text).hexdigest()[:16] / "libfake_cuda.so"


def libraries() -> Path:
    """Builds the fake GPU and torch's side of it, unless that has been done.

    Returns:
        Torch's side.
    """
    folder = plugin().parent
    bridge = folder / "libfake_torch.so"
    if bridge.is_file():
        return bridge
    folder.mkdir(parents=True, exist_ok=True)
    flags = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden",
             f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cpp'}"]  # fmt: skip
    # Its kernels are compiled ten times as fast as they would be for speed, and at once.
    objects = [str(folder / f"{source.stem}.{os.getpid()}.o") for source in PLUGIN]
    jobs = [
        subprocess.Popen([*flags, "-O0", "-ffp-contract=off", "-c", str(source), "-o", made])
        for source, made in zip(PLUGIN, objects, strict=True)
    ]
    codes = [job.wait() for job in jobs]
    assert not any(codes), "the fake GPU cannot be compiled"
    subprocess.run([*flags, *objects, "-o", str(plugin()), "-pthread"], check=True)
    home = Path(torch.__file__).parent
    unfinished = folder / f"libfake_torch.{os.getpid()}.so"
    subprocess.run(
        [*flags, "-O0", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
         "-isystem", str(home / "include"), str(HERE / "fake_torch.cc"), "-o", str(unfinished),
         f"-L{folder}", "-lfake_cuda", f"-Wl,-rpath,{folder}", f"-L{home / 'lib'}",
         "-l:libtorch_cpu.so", "-l:libc10.so"],
        check=True,
    )  # fmt: skip
    unfinished.rename(bridge)
    return bridge


class FakeGpu:
    """The fake GPU of this process."""

    def __init__(self) -> None:
        """Loads it, and lets torch take it for a GPU."""
        bridge = libraries()
        self._cuda = ctypes.CDLL(str(plugin()), mode=ctypes.RTLD_GLOBAL)
        self._torch = ctypes.CDLL(str(bridge))
        self._torch.fake_torch_new_stream.restype = ctypes.c_int64
        self._torch.fake_torch_stream.restype = ctypes.c_int64
        self._torch.fake_torch_use_stream.argtypes = [ctypes.c_int, ctypes.c_int64]
        self._cuda.fake_cuda_unpinned_bytes.restype = ctypes.c_size_t
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

    def _current_stream(self, device: int) -> types.SimpleNamespace:
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


@functools.cache
def install() -> FakeGpu:
    """Gives this process a fake GPU.

    Returns:
        The same one each time.
    """
    return FakeGpu()
