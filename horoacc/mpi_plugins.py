"""Where the MPI plug-ins lie that were built into this HoroACC."""

from __future__ import annotations

from pathlib import Path

FLAVOURS = ("openmpi", "mpich")
FOLDER = Path(__file__).resolve().parent / "lib"


def plugin(flavour: str) -> Path:
    """Where the plug-in for one of `FLAVOURS` lies if it was built; the core finds it by name."""
    return FOLDER / f"libhoroacc_mpi_{flavour}.so"
