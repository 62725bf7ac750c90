"""Which MPI a process uses, and the plug-in for it.

There is one MPI in a process: the libmpi that is mapped already (mpi4py's), else that of the
mpirun that started the job, else the one that the setting names, else a wheel's or the system's.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from horoacc.errors import ConfigError

_SONAMES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
_MAPPED = re.compile(r"\s(/\S*/libmpi\.so\.\S*)$")
_PLUGINS = Path(__file__).resolve().parent / "lib"
MPI_THREAD_MULTIPLE = 3


def plugin(launcher: str, setting: str) -> str:
    """Loads the MPI that this process is to use.

    Args:
        launcher: Who started the process, as `horoacc.launcher.environment` calls it.
        setting: The path of a libmpi from the settings, or "".

    Returns:
        The path of the plug-in that belongs to the loaded libmpi.

    Raises:
        ConfigError: There is no MPI, or no plug-in for it.
    """
    tried = []
    for library, flavour in _candidates(launcher, setting):
        # Global, because the plug-in names its MPI by soname only.
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            tried.append(str(error))
            continue
        built = _PLUGINS / f"libhoroacc_mpi_{flavour}.so"
        if built.is_file():
            return str(built)
        raise ConfigError(
            f"this process uses the {flavour} library {library}, but HoroACC was built without "
            f"the plug-in {built.name}; install it where mpi.h of {flavour} is"
        )
    raise ConfigError(
        "the job was started by MPI, but no MPI library could be loaded"
        + (f" ({'; '.join(tried)})" if tried else "")
        + "; install horoacc[mpi], or set HOROACC_MPI_LIBRARY to the path of libmpi.so"
    )


def thread_level() -> int:
    """Asks the MPI that is loaded for its thread support.

    Returns:
        The level of MPI_Query_thread, 3 for MPI_THREAD_MULTIPLE; 0 if no MPI is loaded.
    """
    mapped = _mapped()
    if mapped is None:
        return 0
    level = ctypes.c_int(0)
    ctypes.CDLL(mapped).MPI_Query_thread(ctypes.byref(level))
    # Open MPI and MPICH both number the levels 0 to 3.
    return level.value


def _candidates(launcher: str, setting: str) -> Iterator[tuple[str, str]]:
    """Paths of libmpi in the order of preference, with their flavour."""
    if (mapped := _mapped()) is not None:
        yield mapped, _flavour(mapped)
        return
    wanted = launcher if launcher in _SONAMES else None
    if wanted is not None and (prefix := _launcher_prefix()) is not None:
        yield from _below(prefix, [wanted])
    if setting:
        yield setting, _flavour(os.path.realpath(setting))
    flavours = [wanted] if wanted is not None else list(_SONAMES)
    yield from _below(Path(sys.prefix), flavours)
    for flavour in flavours:
        yield _SONAMES[flavour], flavour


def _below(prefix: Path, flavours: list[str]) -> Iterator[tuple[str, str]]:
    for flavour in flavours:
        for folder in ("lib", "lib64"):
            library = prefix / folder / _SONAMES[flavour]
            if library.exists():
                yield str(library), flavour


def _mapped() -> str | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := _MAPPED.search(line):
            return found.group(1)
    return None


def _flavour(library: str) -> str:
    name = os.path.basename(library)
    for flavour, soname in _SONAMES.items():
        if name == soname or name.startswith(soname + "."):
            return flavour
    raise ConfigError(
        f"{library} is neither Open MPI's {_SONAMES['openmpi']} nor MPICH's {_SONAMES['mpich']}"
    )


def _launcher_prefix() -> Path | None:
    """Where the process that started this one is installed: it is a part of its MPI."""
    process = os.getppid()
    for _ in range(4):
        try:
            program = Path(os.readlink(f"/proc/{process}/exe"))
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return None
        if program.name.startswith(("prte", "orte", "mpirun", "mpiexec", "hydra")):
            return program.parent.parent
        process = int(status.rpartition(")")[2].split()[1])
    return None
