"""The plug-in that plays a GPU on the host, built once for each state of its sources."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
COMPILED = (
    *sorted((ROOT / "tests/cpp/fake_cuda").glob("fake_*.cc")),
    ROOT / "csrc/execute/cuda/kernels/kernel_plan.cc",
    ROOT / "csrc/execute/kernels/reduce_plan.cc",
    ROOT / "csrc/base/result.cc",
)
INCLUDED = (
    *sorted((ROOT / "tests/cpp/fake_cuda").glob("fake_*.h")),
    ROOT / "tests/cpp/fake_cuda/host_cta.h",
    *sorted((ROOT / "csrc/execute/kernels").glob("*.h")),
    *sorted((ROOT / "csrc/execute/cuda").rglob("*.h")),
)
NCCL = ROOT / "tests/cpp/fake_cuda/host_nccl.cc"
"""An NCCL that the host plays on it."""
FLAGS = ("-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{ROOT / 'csrc'}",
         f"-I{ROOT / 'tests/cpp'}")  # fmt: skip


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


@functools.cache
def plugin() -> Path:
    """Says where the fake GPU is built.

    Returns:
        The plug-in's path.
    """
    text = b"".join(source.read_bytes() for source in (*COMPILED, *INCLUDED))
    return ROOT / "build" / "fake_gpu" / hashlib.sha256(text).hexdigest()[:16] / "libfake_cuda.so"


def _build_plugin() -> None:
    folder = plugin().parent
    # Its kernels are compiled ten times as fast as they would be for speed, and at once.
    objects = [str(folder / f"{source.stem}.{os.getpid()}.o") for source in COMPILED]
    jobs = [
        subprocess.Popen([_compiler(), *FLAGS, "-O0", "-ffp-contract=off", "-c", str(source), "-o",
                          made])
        for source, made in zip(COMPILED, objects, strict=True)
    ]  # fmt: skip
    codes = [job.wait() for job in jobs]
    assert not any(codes), "the fake GPU cannot be compiled"
    unfinished = folder / f"libfake_cuda.{os.getpid()}.so"
    subprocess.run(
        [_compiler(), *FLAGS, "-Wl,-soname,libfake_cuda.so", *objects, "-o", str(unfinished),
         "-pthread"],
        check=True,
    )  # fmt: skip
    unfinished.rename(plugin())


def bridge_path(source: Path, version: str) -> Path:
    """Says where a library that uses the fake GPU is built.

    Args:
        source: The only file of it.
        version: Of what else it depends on.

    Returns:
        The library's path.
    """
    state = hashlib.sha256(source.read_bytes() + version.encode()).hexdigest()[:16]
    return plugin().parent / f"{source.stem}-{state}.so"


def bridge(source: Path, version: str, flags: Sequence[str]) -> Path:
    """Builds the plug-in and a framework's side of it, unless that has been done.

    Args:
        source: The framework's side.
        version: The framework's.
        flags: What compiling and linking it takes.

    Returns:
        The framework's side, a library that is linked to the plug-in.
    """
    built = bridge_path(source, version)
    folder = built.parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in lanes
        if not plugin().is_file():
            _build_plugin()
        if not built.is_file():
            _build_bridge(source, built, flags)
    return built


def _build_bridge(source: Path, built: Path, flags: Sequence[str]) -> None:
    folder = built.parent
    unfinished = folder / f"{source.stem}.{os.getpid()}.so"
    subprocess.run(
        [_compiler(), *FLAGS, "-O0", str(source), "-o", str(unfinished), f"-L{folder}",
         "-lfake_cuda", f"-Wl,-rpath,{folder}", *flags],
        check=True,
    )  # fmt: skip
    unfinished.rename(built)
