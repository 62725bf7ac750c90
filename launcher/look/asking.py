"""Asks all ranks of a running job how they are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from horoacc.launcher.flight_records import Record, parse
from horoacc.launcher.look.jobs import MEET_SECONDS, LookError, RunningJob, running_jobs, state_of
from horoacc.monitor.door import Door, ask, is_shut

__all__ = ["Asker", "Scope", "View"]

_BUSY = 0.5  # of a processor
_HERE_SECONDS = 0.7
_ELSEWHERE_SECONDS = 1.3  # more than the core's own limit
_STACK_SECONDS = 3.2  # the same, with stacks
_STATES = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a device"}


class Scope(NamedTuple):
    """What to ask for."""

    seconds: float
    """Of events."""
    events: int
    """The most of a rank."""
    stack: bool = False


@dataclass(frozen=True)
class View:
    """A job at one moment."""

    job: str
    size: int
    records: Mapping[int, Record]
    """Of the ranks that have answered."""
    silent: Mapping[int, str]
    """Why the others have not."""
    scope: Scope
    cpu: Mapping[int, float] = field(default_factory=dict)
    """What each rank used of a processor since the view before, if there was one."""
    busy: frozenset[int] = frozenset()
    """The ranks that ran most of that time, or would have if they had had a processor."""

    @property
    def across_hosts(self) -> bool:
        """Whether it has ranks of several hosts."""
        return any(self.size > len(record.host_ranks) for record in self.records.values())

    @property
    def failure(self) -> str:
        """Why the job has failed, "" if it has not."""
        return next((record.failure for record in self.records.values() if record.failure), "")


class Asker:
    """Looks at one job again and again."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job.name
        self._before: dict[int, Record] = {}  # by rank
        self._pids: dict[int, int] = {}  # of ranks that were here

    def look(self, scope: Scope) -> View:
        """Asks all ranks.

        Raises:
            LookError: The job is over.
        """
        asked: dict[int, Door] = {}
        for door in self._doors():
            if door.rank not in asked or is_shut(asked[door.rank]):  # of a rank's former process
                asked[door.rank] = door
        self._pids |= {rank: door.pid for rank, door in asked.items()}
        limit = _STACK_SECONDS if scope.stack else _HERE_SECONDS
        question = f"{scope.stack:d} {scope.seconds} {scope.events}"
        paths = {rank: str(door.path) for rank, door in asked.items()}
        answers = ask(paths, limit, f"{question}\n".encode())
        records = _records(answers.values())
        if not records:
            if not asked and not any(map(state_of, self._pids.values())):
                raise LookError(f"the job {self._job} is over")
            # Without a door, but there: an elastic job's that waits for hosts, or behind the job.
            size = max([*asked, *self._pids]) + 1
            silent = {rank: self._why(rank, asked, ()) for rank in range(size)}
            return View(self._job, size, {}, silent, scope)
        size = next(iter(records.values())).size
        here = {rank for record in records.values() for rank in record.host_ranks} | set(asked)
        elsewhere = [rank for rank in range(size) if rank not in here]
        if elsewhere:
            limit = _STACK_SECONDS if scope.stack else _ELSEWHERE_SECONDS
            words = f"{question} {' '.join(map(str, elsewhere))}\n"
            # The first that answers; of several hosts here (simulated ones) any knows the others.
            first = min(records)
            records |= _records(ask({first: paths[first]}, limit, words.encode()).values())
        failed = any(record.failure for record in records.values())
        silent = {
            rank: self._why(rank, asked, elsewhere, failed)
            for rank in range(size)
            if rank not in records
        }
        records = dict(sorted(records.items()))
        return View(self._job, size, records, silent, scope, *self._cpu(records))

    def _doors(self) -> Sequence[Door]:
        """An elastic job has none for a moment while its ranks meet again."""
        over = time.monotonic() + MEET_SECONDS
        while True:
            doors = next((job.doors for job in running_jobs() if job.name == self._job), ())
            if doors or time.monotonic() > over:
                return doors
            time.sleep(0.02)

    def _cpu(self, records: Mapping[int, Record]) -> tuple[dict[int, float], frozenset[int]]:
        used, busy = {}, set()
        for rank, record in records.items():
            before = self._before.get(rank, record)
            self._before[rank] = record
            seconds = record.clock - before.clock
            if before.pid != record.pid or seconds <= 0:
                continue
            used[rank] = (record.cpu - before.cpu) / seconds
            if used[rank] + (record.no_cpu - before.no_cpu) / seconds > _BUSY:
                busy.add(rank)
        return used, frozenset(busy)

    def _why(
        self,
        rank: int,
        asked: Mapping[int, Door],
        elsewhere: Sequence[int],
        failed: bool = False,
    ) -> str:
        """Why a rank does not answer."""
        if rank in elsewhere:
            after = ": none of another host does after a failure" if failed else ""
            return f"does not answer{after}"
        pid = asked[rank].pid if rank in asked else self._pids.get(rank)
        if rank not in asked or pid is None or is_shut(asked[rank]):
            gone = pid is None or not state_of(pid)
            number = f" {pid}" if pid is not None else ""
            return f"is gone: its process{number} has ended" if gone else "has left the job"
        state = state_of(pid)
        if not state:
            return f"is gone: its process {pid} has ended"
        return f"does not answer: process {pid} {_STATES.get(state, 'is there')}"


def _records(texts: Iterable[bytes]) -> dict[int, Record]:
    """The records in answers; a damaged one is as none."""
    found: dict[int, Record] = {}
    for text in texts:
        while text:
            line, _, text = text.partition(b"\n")
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                rank, size = map(int, line.split())
                body, text = text[:size], text[size:]
                record = parse(body.decode(errors="replace"))
                if record.rank == rank:
                    found[rank] = record
                continue
            break
    return found
