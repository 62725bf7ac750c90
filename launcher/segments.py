"""MPI's shared memory that stays in /dev/shm when its ranks are killed.

MPICH makes one file for all ranks of a host and removes it in MPI_Finalize; Open MPI makes one for
each rank. No name tells the job, so the mappings of its ranks are read while they live.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

_FOLDER = "/dev/shm"
_NAMES = ("mpich_shm_", "sm_segment.")


class Segment(NamedTuple):
    """A file; its number tells it from a later one of the same name."""

    path: str
    inode: int


def mapped_by(pids: Iterable[int]) -> set[Segment]:
    """The segments that processes have mapped; processes that are gone have none."""
    prefixes = tuple(f"{_FOLDER}/{name}" for name in _NAMES)
    found = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps") as maps:
                lines = [line.split(None, 5) for line in maps if _FOLDER in line]
        except OSError:
            continue
        for fields in lines:
            path = fields[-1].rstrip("\n")
            if path.startswith(prefixes) and not path.endswith(" (deleted)"):
                found.add(Segment(path, int(fields[4])))
    return found


def remove(segments: Iterable[Segment]) -> None:
    """Removes segments that are still there."""
    for path, inode in segments:
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


class Search:
    """Looks for the segments of a job's processes again and again, at the price of a listing."""

    def __init__(self) -> None:
        self.found: set[Segment] = set()
        self._looks: dict[str, int] = {}

    def look(self, pids: Callable[[], Iterable[int]]) -> None:
        """Reads the mappings of `pids()` if there is a file that was not there before."""
        try:
            new = [name for name in os.listdir(_FOLDER) if name.startswith(_NAMES)]
        except OSError:
            return  # there is no such folder here, and nothing in it
        # Between making a file and mapping it a rank may be stopped: a few looks, not one.
        new = [name for name in new if self._looks.get(name, 0) < 5]
        if not new:
            return
        for name in new:
            self._looks[name] = self._looks.get(name, 0) + 1
        self.found |= mapped_by(pids())
