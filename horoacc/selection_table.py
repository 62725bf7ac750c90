"""The table of measured algorithms: one file for each machine, written by `horoaccrun tune`.

Rank 0 reads it when a job starts, and its values hold on all ranks.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from horoacc import cache, settings
from horoacc._version import __version__

LAST_ARRIVER, SLICES = "last_arriver", "direct_slices"
"""Ways of an allreduce inside a host: one rank reduces for all, or every rank its slices."""
_PATHS = (LAST_ARRIVER, SLICES)
OF_GPUS = "gpu_"
"""The prefix of the modes in which GPUs reduce."""
_FORMAT = 1


class Measurement(NamedTuple):
    """The time of one algorithm for one size."""

    algorithm: str
    """A schedule's name, a way inside a host, or a mode of GPUs."""
    hosts: tuple[int, ...]
    """Ranks of each host; of a mode of GPUs, ranks of each GPU."""
    bytes: int
    """Of the whole vector."""
    seconds: float


def machine() -> dict[str, Any]:
    """A measurement holds for the same host, processor, cores and GPUs only."""
    processor = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    here = {"host": socket.gethostname(), "processor": processor, "cores": cores}
    gpus = Path("/proc/driver/nvidia/gpus")
    return {**here, "gpus": sorted(gpu.name for gpu in gpus.iterdir())} if gpus.is_dir() else here


def path(environ: Mapping[str, str]) -> Path | None:
    """Where this machine's table is or would be; None if HOROACC_SELECTION_TABLE is off."""
    given = str(settings.read(environ)["selection_table"])
    if given:
        return None if given == "off" else Path(given).expanduser()
    return cache.folder(environ) / f"selection-{socket.gethostname()}.json"


def save(file: Path, measured: Sequence[Measurement]) -> None:
    """Writes a table, in one step; measurements of other hosts' shapes are kept.

    The new ones replace all of jobs of the same shape; of GPUs or of hosts, whichever it is about.
    """
    shapes = {_subject(row) for row in measured}
    try:
        kept = [row for row in _read(file) if _subject(row) not in shapes]
    except (OSError, ValueError):
        kept = []
    table = {
        "format": _FORMAT,
        "version": __version__,
        "machine": machine(),
        "rows": [list(row) for row in (*kept, *measured)],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(table, indent=1) + "\n")
    new.replace(file)


def _subject(row: Measurement) -> tuple[bool, tuple[int, ...]]:
    return row.algorithm.startswith(OF_GPUS), row.hosts


def _read(file: Path) -> list[Measurement]:
    """Raises ValueError for a file that is no table of this version and machine."""
    table = json.loads(file.read_text())
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        raise ValueError("it is not in this version's format")
    if table.get("version") != __version__:
        raise ValueError(f"HoroACC {table.get('version')} wrote it, and this is {__version__}")
    if table.get("machine") != machine():
        raise ValueError(f"it is of another machine: {table.get('machine')}, not {machine()}")
    rows = []
    for row in table.get("rows", ()):
        algorithm, hosts, size, seconds = row
        if not all(isinstance(ranks, int) and ranks > 0 for ranks in hosts) or not seconds > 0:
            raise ValueError(f"{row} is no measurement")
        rows.append(Measurement(str(algorithm), tuple(hosts), int(size), float(seconds)))
    return rows


class Loaded(NamedTuple):
    """The part of a table that a job uses."""

    rows: str
    """As csrc/schedule/measured.h reads them."""
    last_arriver_bytes: int | None
    """Up to which size one rank should reduce for all of a host; None: it was not measured."""
    warning: str
    """Why the table is ignored, or ""."""


def load(environ: Mapping[str, str], ranks: int) -> Loaded:
    """Reads this machine's table: empty without a file, with a warning if it cannot be used."""
    file = path(environ)
    # A given path must exist; the default one need not.
    given = bool(settings.read(environ)["selection_table"])
    if file is None or not (given or file.exists()):
        return Loaded("", None, "")
    try:
        rows = _read(file)
    except (OSError, ValueError, TypeError) as error:
        why = f"the table of measured algorithms {file} is ignored: {error}"
        return Loaded("", None, f"{why}; `horoaccrun tune` makes a new one")
    across = [row for row in rows if row.algorithm not in _PATHS]
    text = ";".join(
        f"{row.algorithm}@{','.join(map(str, row.hosts))}:{row.bytes}={row.seconds:.6g}"
        for row in across
    )
    return Loaded(text, last_arriver_bytes(rows, ranks), "")


def last_arriver_bytes(rows: Sequence[Measurement], ranks: int) -> int | None:
    """Finds up to which size one rank should reduce for all ranks of a host.

    It is the largest size for which that was the quicker way, as it was for all that are smaller; 0
    if for none, None if it was not measured for so many ranks.
    """
    times: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.algorithm in _PATHS and row.hosts == (ranks,):
            times.setdefault(row.bytes, {})[row.algorithm] = row.seconds
    both = {size: taken for size, taken in times.items() if len(taken) == len(_PATHS)}
    if not both:
        return None
    bound = 0
    for size in sorted(both):
        if both[size][LAST_ARRIVER] > both[size][SLICES]:
            break
        bound = size
    return bound
