"""The running jobs of this user that have ranks, an agent or their launcher on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from horoacc.monitor.door import Door, doors, is_shut

__all__ = [
    "MEET_SECONDS", "LookError", "RunningJob", "command_of", "find_job", "is_beside",
    "running_jobs", "silence",
]  # fmt: skip


class LookError(ValueError):
    """There is no such job to look at."""


class RunningJob(NamedTuple):
    """A job with at least one process here that listens."""

    name: str
    doors: tuple[Door, ...]
    """Of its processes here, also of those that were killed."""

    @property
    def has_ranks(self) -> bool:
        """Whether a rank listens here, and not only a launcher or an agent."""
        return any(door.rank >= 0 and not is_shut(door) for door in self.doors)

    def line(self) -> str:
        """Says which it is."""
        numbers = ", ".join(door.owner for door in self.doors if door.rank >= 0)
        ranks = f"ranks {numbers}" if numbers else f"its {self.doors[0].owner}"
        first = next((door for door in self.doors if not is_shut(door)), self.doors[0])
        return f"{self.name}  {ranks}, for {_age(first.pid)}: {command_of(first.pid)}"


_NONE = "no job of this user has ranks, an agent or its launcher on this host"
# So long an elastic job may have no rank that listens, while its ranks meet again.
MEET_SECONDS = 1.0
_STATES = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a device"}
_NAMESPACES = ("mnt", "pid", "user")


def running_jobs() -> list[RunningJob]:
    """Lists them; LookError if others may have put them there."""
    try:
        every = doors()
    except OSError as error:
        raise LookError(error.strerror or str(error)) from None
    names = dict.fromkeys(door.job for door in every)
    jobs = [RunningJob(name, tuple(d for d in every if d.job == name)) for name in names]
    return [job for job in jobs if not all(map(is_shut, job.doors))]


def find_job(name: str | None) -> RunningJob:
    """Finds a job by its name, or by the number of a process of it; None: the only one.

    Without a name, jobs with ranks here come before others: ranks of `init(comm=...)` give their
    job another name than its launcher has.

    Raises:
        LookError: There is none, or there are several.
    """
    until = time.monotonic() + MEET_SECONDS
    while not (jobs := running_jobs()) and time.monotonic() < until:
        time.sleep(0.02)
    listed = "".join(f"\n  {job.line()}" for job in jobs)
    if name is None:
        first = [job for job in jobs if job.has_ranks] or jobs
        if len(first) == 1:
            return first[0]
        raise LookError(f"which of these jobs?{listed}" if jobs else _NONE)
    for job in jobs:
        if job.name == name:
            return job
    if name.isdigit():
        for job in jobs:
            if any(int(name) in _with_parents(door.pid) for door in job.doors):
                return job
    known = f"there are:{listed}" if jobs else f"and {_NONE}"
    raise LookError(f"there is no running job '{name}' here, {known}")


def command_of(pid: int) -> str:
    """Gives a process's command line, "" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def _stat(pid: int) -> list[str]:
    """The fields of proc(5) from the state on; [] if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def state_of(pid: int) -> str:
    """Gives the letter of a process's state, "" if it is gone or ending."""
    found = _stat(pid)
    return found[0] if found and found[0] not in "ZX" else ""


def silence(pid: int) -> str:
    """Says why a process gives no answer."""
    state = state_of(pid)
    if not state:
        return f"is gone: its process {pid} has ended"
    return f"does not answer: process {pid} {_STATES.get(state, 'is there')}"


def is_beside(pid: int) -> bool:
    """Whether a process is in this one's namespaces, as one in a container is not."""
    try:
        return all(
            os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
            for name in _NAMESPACES
        )
    except OSError:
        return False


def _with_parents(pid: int) -> Iterator[int]:
    while pid > 1 and (found := _stat(pid)):
        yield pid
        pid = int(found[1])


def _age(pid: int) -> str:
    found = _stat(pid)
    if not found:
        return "?"
    began = int(found[19]) / os.sysconf("SC_CLK_TCK")
    seconds = int(time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
