"""Where the MPI plug-ins lie that were built into this HoroACC."""

from __future__ import annotations

from pathlib import Path

FLAVOURS = ("openmpi", "mpich")
FOLDER = Path(__file__).resolve().parent / "lib"


def plugin(flavour: str) -> Path:
    """Says where the plug-in for an MPI lies if it was built.

    Args:
        flavour: One of `FLAVOURS`.

    Returns:
        The file. The core finds it by the same name.
    """
    return FOLDER / f"libhoroacc_mpi_{flavour}.so"
