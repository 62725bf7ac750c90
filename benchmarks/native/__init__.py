"""Compiles the few C++ lines of the benchmarks, for this very processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDER = ROOT / "build" / "bench"


def library(source: str, *flags: str, header: Path | None = None) -> ctypes.CDLL:
    """Compiles a source of this folder, unless that was done already, and loads it.

    Args:
        source: The file's name.
        flags: More for the compiler.
        header: What the source includes of the project: compiled anew when it changes.

    Raises:
        RuntimeError: There is no compiler, or it failed.
    """
    path = Path(__file__).parent / source
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra", "-shared",
               "-fPIC", "-pthread", *flags]  # fmt: skip
    texts = [path.read_bytes(), header.read_bytes() if header else b""]
    key = hashlib.sha256(b"".join([repr(command).encode(), *texts])).hexdigest()[:16]
    output = _FOLDER / f"{path.stem}-{key}.so"
    if not output.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        # Ranks may compile at the same time: each its own, and the last one to be done wins.
        fresh = output.with_suffix(f".{os.getpid()}")
        try:
            done = subprocess.run(
                [*command, str(path), "-o", str(fresh)],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        except OSError as error:
            raise RuntimeError(f"{compiler} cannot be started: {error}") from error
        if done.returncode != 0:
            raise RuntimeError(f"{compiler} failed for {source}: {done.stderr[-2000:]}")
        fresh.replace(output)
    return ctypes.CDLL(str(output))
