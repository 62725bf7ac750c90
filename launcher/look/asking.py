"""Asks all ranks of a running job how they are."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import geteuid
from typing import NamedTuple

from horoacc.launcher.flight_records import Record, parse
from horoacc.launcher.look.jobs import LookError, RunningJob, running_jobs, state_of
from horoacc.monitor.door import Door, is_shut

__all__ = ["Asker", "Scope", "View"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_PART = 1 << 20
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
        doors = next((job.doors for job in running_jobs() if job.name == self._job), ())
        asked: dict[int, Door] = {}
        for door in doors:
            if door.rank not in asked or is_shut(asked[door.rank]):  # of a rank's former process
                asked[door.rank] = door
        self._pids |= {rank: door.pid for rank, door in asked.items()}
        limit = _STACK_SECONDS if scope.stack else _HERE_SECONDS
        question = f"{scope.stack:d} {scope.seconds} {scope.events}"
        answers = _ask(list(asked.values()), question, limit)
        records = _records(answers.values())
        if not records:
            if not asked:
                raise LookError(f"the job {self._job} is over")
            size = max(asked) + 1
            silent = {rank: self._why(rank, asked, ()) for rank in range(size)}
            return View(self._job, size, {}, silent, scope)
        size = next(iter(records.values())).size
        here = {rank for record in records.values() for rank in record.host_ranks} | set(asked)
        elsewhere = [rank for rank in range(size) if rank not in here]
        if elsewhere:
            limit = _STACK_SECONDS if scope.stack else _ELSEWHERE_SECONDS
            words = f"{question} {' '.join(map(str, elsewhere))}"
            # The first that answers; of several hosts here (simulated ones) any knows the others.
            door = asked[min(records)]
            records |= _records(_ask([door], words, limit).values())
        failed = any(record.failure for record in records.values())
        silent = {
            rank: self._why(rank, asked, elsewhere, failed)
            for rank in range(size)
            if rank not in records
        }
        records = dict(sorted(records.items()))
        return View(self._job, size, records, silent, scope, *self._cpu(records))

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


def _ask(doors: Sequence[Door], question: str, seconds: float) -> dict[int, bytes]:
    """Asks all at once; gives the whole answers, by rank."""
    answers: dict[int, bytes] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for door in doors:
            link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            link.setblocking(False)
            with contextlib.suppress(OSError):
                link.connect(str(door.path))
                told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                if _CREDENTIALS.unpack(told)[1] == geteuid():
                    link.sendall(f"{question}\n".encode())
                    selector.register(link, selectors.EVENT_READ, (door.rank, bytearray()))
        end = time.monotonic() + seconds
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                rank, text = key.data
                assert isinstance(key.fileobj, socket.socket)
                try:
                    part = key.fileobj.recv(_PART)
                except OSError:
                    part = b""
                text += part
                if not part:
                    selector.unregister(key.fileobj)
                    answers[rank] = bytes(text)
    return answers
