"""Asks all ranks of a running job how they are: from wherever a process of the job is."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horoacc.launcher.doctor.reach import Unreached
from horoacc.launcher.flight_records import Record, parse
from horoacc.launcher.look.jobs import (
    MEET_SECONDS,
    LookError,
    RunningJob,
    is_beside,
    running_jobs,
    silence,
    state_of,
)
from horoacc.launcher.look.look_server import STATUS, is_whole
from horoacc.launcher.look.remote_ranks import RemoteRanks
from horoacc.monitor.door import LAUNCHER, Door, ask, is_shut

__all__ = ["HERE_SECONDS", "STACK_SECONDS", "Asker", "LocalRanks", "Scope", "Told", "View"]

_BUSY = 0.5  # of a processor
HERE_SECONDS = 0.7
"""How long ranks of a host have to answer,"""
STACK_SECONDS = 3.2
"""and with stacks."""
_ELSEWHERE_SECONDS = 1.3  # more than the core's own limit
_WAY_SECONDS = 2.0  # through the launcher, more than it gives to agents
_RELAY_SECONDS = 2.0  # through a process on another host
_AGAIN_SECONDS = 30.0  # until hosts that could not be reached are tried again
_DAMAGES = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class Scope(NamedTuple):
    """What to ask for."""

    seconds: float
    """Of events."""
    events: int
    """The most of a rank."""
    stack: bool = False

    @staticmethod
    def of(question: str) -> Scope:
        """Reads a question; ValueError: it is none."""
        stack, seconds, events = question.split()
        return Scope(float(seconds), int(events), bool(int(stack)))

    @property
    def question(self) -> str:
        """As ranks take it."""
        return f"{self.stack:d} {self.seconds} {self.events}"


class Told(NamedTuple):
    """What the ranks of a job have said."""

    records: Mapping[int, Record]
    silent: Mapping[int, str]
    """Why others have said nothing."""
    answers: bytes = b""
    """The records as they came."""
    no_ranks: str = ""
    """As of `View`."""
    listen: bool = False
    """Whether ranks that have said nothing listen on this host."""
    most: float = math.inf
    """Events of a rank that they were asked for at most."""


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
    no_ranks: str = ""
    """Why there is no rank to look at, as a sentence; "" if there is one."""

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
        self._local = LocalRanks(job.name)
        self._remote: RemoteRanks | None = None
        self._unreached = ""
        self._again = 0.0  # when hosts are tried again
        self._before: dict[int, Record] = {}  # by rank

    def close(self) -> None:
        """Ends what it has started."""
        if self._remote is not None:
            self._remote.close()

    def look(self, scope: Scope) -> View:
        """Asks all ranks.

        Raises:
            LookError: The job is over.
        """
        told = self._local.ask(scope)
        if not told.records:
            doors = [door for door in self._local.doors() if door.rank < 0 and not is_shut(door)]
            if doors:
                first = min(doors, key=lambda door: door.owner != LAUNCHER)
                told = self._through(first, scope, told)
            elif not told.silent:
                raise LookError(f"the job {self._job} is over")
        if not told.records:
            # Without a door, but there: an elastic job's that waits for hosts, or behind the job.
            size = max(told.silent, default=-1) + 1
            return View(self._job, size, {}, told.silent, scope, no_ranks=told.no_ranks)
        size = next(iter(told.records.values())).size
        silent = {
            rank: told.silent.get(rank, "does not answer")
            for rank in range(size)
            if rank not in told.records
        }
        scope = scope._replace(events=int(min(scope.events, told.most)))
        records = dict(sorted(told.records.items()))
        return View(self._job, size, records, silent, scope, *self._cpu(records))

    def _through(self, door: Door, scope: Scope, here: Told) -> Told:
        """Asks the launcher, or an agent; `here` is what the ranks of this host have said."""
        limit = (STACK_SECONDS if scope.stack else HERE_SECONDS) + _WAY_SECONDS
        question = f"{scope.question}\n".encode()
        listeners: dict[int, int] = {}
        answer = ask({STATUS: str(door.path)}, limit, question, listeners).get(STATUS, b"")
        records, status = _read(answer)
        if records:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                silent = {
                    int(rank): str(why) for rank, why in dict(status.get("silent", {})).items()
                }
                most = float(status.get("events", math.inf))
                return Told(records, {**silent, **here.silent}, most=max(most, 0))
            return Told(records, here.silent)
        if here.listen:
            return here
        if "hosts" in status and self._local.knew_ranks:
            return Told({}, here.silent, no_ranks="its ranks on this host have ended")
        if "hosts" in status:
            # What it tells is run here: no process of a container may choose that.
            if listeners[STATUS] == door.pid and is_beside(door.pid):
                return self._ask_elsewhere(status, scope)
            why = (
                "its ranks are on other hosts, and none is reached from here: process "
                f"{door.pid} does not listen itself, or is in a container's namespaces"
            )
            return Told({}, {}, no_ranks=why)
        why = f"its {door.owner} {silence(door.pid)}"
        return Told({}, {}, no_ranks=str(status.get("no_ranks", why)))

    def _ask_elsewhere(self, status: Mapping[str, Any], scope: Scope) -> Told:
        """Asks a rank on another host, by a process there."""
        if time.monotonic() < self._again:
            return Told({}, {}, no_ranks=self._unreached)
        limit = 2 * STACK_SECONDS if scope.stack else HERE_SECONDS + _ELSEWHERE_SECONDS
        try:
            self._remote = self._remote or RemoteRanks(self._job, status)
            answers, silent = self._remote.ask(scope.question, limit + _RELAY_SECONDS)
        except (Unreached, ValueError, KeyError, TypeError, AttributeError) as error:
            self._again = time.monotonic() + _AGAIN_SECONDS
            hosts = ",".join(map(str, status["hosts"]))
            advice = f"`horoaccrun doctor -H {hosts}` says more"
            self._unreached = f"its ranks are on other hosts, and {error}; {advice}"
            return Told({}, {}, no_ranks=self._unreached)
        records, _ = _read(answers)
        none = f"none of its ranks listens on {self._remote.host}: they start, or have ended"
        return Told(records, silent, no_ranks="" if silent else none)

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


class LocalRanks:
    """Asks the ranks whose sockets are on this host, and through one of them the others."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._pids: dict[int, int] = {}  # of ranks that were here
        self._listened = False

    @property
    def knew_ranks(self) -> bool:
        """Whether ranks have listened on this host."""
        return bool(self._pids)

    def doors(self) -> Sequence[Door]:
        """Gives the sockets of the job on this host, of ranks and others."""
        return next((job.doors for job in running_jobs() if job.name == self._job), ())

    def ask(self, scope: Scope) -> Told:
        """Asks them."""
        asked: dict[int, Door] = {}
        for door in self._rank_doors():
            if door.rank not in asked or is_shut(asked[door.rank]):  # of a rank's former process
                asked[door.rank] = door
        self._pids |= {rank: door.pid for rank, door in asked.items()}
        limit = STACK_SECONDS if scope.stack else HERE_SECONDS
        paths = {rank: str(door.path) for rank, door in asked.items()}
        came = ask(paths, limit, f"{scope.question}\n".encode()).values()
        # A part of one would hide those after it.
        answers = b"".join(answer for answer in came if is_whole(answer))
        records, _ = _read(answers)
        if not records:
            there = bool(asked) or any(map(state_of, self._pids.values()))
            size = max([*asked, *self._pids], default=-1) + 1
            silent = {rank: self._why(rank, asked, ()) for rank in range(size if there else 0)}
            return Told({}, silent, listen=not all(map(is_shut, asked.values())))
        size = next(iter(records.values())).size
        here = {rank for record in records.values() for rank in record.host_ranks} | set(asked)
        elsewhere = [rank for rank in range(size) if rank not in here]
        if elsewhere:
            limit = STACK_SECONDS if scope.stack else _ELSEWHERE_SECONDS
            words = f"{scope.question} {' '.join(map(str, elsewhere))}\n"
            # The first that answers; of several hosts here (simulated ones) any knows the others.
            first = min(records)
            more = ask({first: paths[first]}, limit, words.encode()).get(first, b"")
            answers += more
            records |= _read(more)[0]
        failed = any(record.failure for record in records.values())
        silent = {
            rank: self._why(rank, asked, elsewhere, failed)
            for rank in range(size)
            if rank not in records
        }
        return Told(records, silent, answers)

    def _rank_doors(self) -> Sequence[Door]:
        """An elastic job has none for a moment while its ranks meet again."""
        over = time.monotonic() + (MEET_SECONDS if self._listened else 0.0)
        while not (found := [door for door in self.doors() if door.rank >= 0]):
            if time.monotonic() >= over:
                break
            time.sleep(0.02)
        self._listened = bool(found)
        return found

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
        return silence(pid)


def _read(answers: bytes) -> tuple[dict[int, Record], dict[str, Any]]:
    """The records in answers, and what the process itself had to say; a damaged one is as none."""
    found: dict[int, Record] = {}
    status: dict[str, Any] = {}
    at = 0
    while (end := answers.find(b"\n", at)) >= 0:
        try:
            rank, size = map(int, answers[at:end].split())
        except ValueError:
            break
        at = end + 1 + max(size, 0)
        body = answers[end + 1 : at]
        with contextlib.suppress(*_DAMAGES):
            if rank == STATUS:
                status |= json.loads(body)
            elif (record := parse(body.decode(errors="replace"))).rank == rank:
                found[rank] = record
    return found, status
