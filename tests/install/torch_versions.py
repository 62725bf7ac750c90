"""Compiles torch's ops against other versions of torch, on the Pythons that are here in turn.

    python tests/install/torch_versions.py 2.10.0 2.11.0

`make test-torch-versions` calls it. Only headers are needed, so it takes them from the smallest
wheel of a version, which is that for macOS (80 to 130 MB; those for Linux have 200 MB to 1 GB). Of
what the ops include, nothing but declarations of kernels, which they do not call, differs from
Linux's: that was looked at for 2.13.0. The headers stay in build/torch-versions. Nothing is linked,
and no such torch is run.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bare import ROOT
from wheels import interpreters

from horoacc import ops_build

PLACE = ROOT / "build" / "torch-versions"
INCLUDE = "import sysconfig; print(sysconfig.get_path('include'))"


def headers(version: str) -> Path:
    """The headers of a version, fetched the first time."""
    folder = PLACE / version
    if (folder / "torch" / "version.py").exists():
        return folder / "torch" / "include"
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download",
             "--no-deps", "--only-binary=:all:", "--implementation=cp", "--python-version=3.11",
             "--platform=macosx_11_0_arm64", "--platform=macosx_14_0_arm64",
             f"--dest={scratch}", f"torch=={version}"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            names = [name for name in files.namelist() if name.startswith("torch/include/")]
            files.extractall(folder, names)
            files.extract("torch/version.py", folder)  # last: all of it is there
    return folder / "torch" / "include"


def compiles(version: str, python: str) -> bool:
    """Whether the ops compile, without a warning, with these headers."""
    run = subprocess.run([python, "-c", INCLUDE], capture_output=True, text=True, check=True)
    sources = ops_build.sources_of("torch_ops")
    flags = ["-c", "-Werror", "-isystem", str(headers(version)), "-isystem", run.stdout.strip()]
    command = ops_build.one_unit_command(sources, PLACE / f"{version}.o", flags, [])
    good = subprocess.run(command, check=False).returncode == 0
    said = "compiled" if good else "NOT COMPILED"
    print(f"torch {version}, {Path(python).name}: {said}", flush=True)
    return good


if __name__ == "__main__":
    turns = zip(sys.argv[1:], itertools.cycle(interpreters().values()), strict=False)
    results = [compiles(version, python) for version, python in turns]
    sys.exit(not all(results))
