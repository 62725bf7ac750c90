"""This process as a worker of an elastic job: its line to the coordinator, and its seat.

The coordinator (`horoacc.launcher.elastic`) hands out a seat for each epoch of the job. A thread
reads what it says; the thread that trains asks for seats, and looks for news at its checks.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from horoacc import job_secret, process, process_sets
from horoacc.elastic.notices import HostUpdateResult
from horoacc.errors import Aborted, ConfigError, HorovodInternalError, PeerLost, Timeout
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message, dial
from horoacc.launcher.elastic.membership import Report
from horoacc.launcher.places import MeetingPoint, Place, meeting_variables

R = TypeVar("R")

_DIAL_SECONDS = 30.0


class Removed(SystemExit):
    """This process has no place in the job any more, and ends with code 0; the job goes on."""


class EpochOver(HorovodInternalError):
    """The ranks changed while this one met the others: they meet again."""


@dataclass(frozen=True)
class News:
    """What happened to the hosts, and when, as all ranks see it at the same check."""

    time: float
    change: HostUpdateResult


class Member:
    """This process's part in an elastic job.

    Attributes:
        sync: Whether the ranks of the present epoch have to share their state.
        recover: "forward" if the ranks keep their states as they are, "commit" if they go back to
            their last commits, "" if nothing has failed.
        level: Whether this rank has the same state as the one that shares its own.
        epoch: Its number, or 0.
        expected: Of a process that prepares itself beside the running ranks, the place that it
            will have about; else None.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Connects to the coordinator.

        Raises:
            ConfigError: It is not there, or does not take this process.
        """
        self.sync = True
        self.recover = ""
        self.level = False
        self.expected: tuple[int, ...] | None = None
        self._fresh = True  # it has not had a seat
        self.epoch = 0
        self._lock = threading.Condition()
        self._seat: Message | None = None
        self._over = ""  # why there are no more seats
        self._removed = False
        self._changed = False  # the epoch is not the latest any more
        self._checks = 0
        self._question: int | None = None
        self._verdict: Message | None = None
        self._failure: HorovodInternalError | None = None
        self._report = Report()
        self._meeting: MeetingPoint | None = None
        try:
            secret = job_secret.environ()["HOROACC_SECRET"]
            self._secret = secret.encode()  # the job's
            self._channel: Channel = dial(environ["HOROACC_COORDINATOR"], secret, _DIAL_SECONDS)
            self._channel.send({"kind": "worker", "worker": int(environ["HOROACC_WORKER"])})
        except (ChannelError, KeyError, ValueError) as error:
            raise ConfigError(f"this process belongs to an elastic job, but: {error}") from None
        threading.Thread(target=self._read, name="horoacc-member", daemon=True).start()

    # --- seats --------------------------------------------------------------------------------

    def join(self, make: Callable[[], R]) -> R:
        """Takes a seat and meets the other ranks, as often as it needs until an epoch begins.

        Args:
            make: Meets them at the place that the environment names.

        Returns:
            What `make` returned.

        Raises:
            Removed: This process has no place in the job any more.
            Aborted: The coordinator is gone.
        """
        while True:
            self.expected = None
            beside = self._take_seat()
            try:
                made = make()
                if beside is not None:
                    os.environ.update(_variables(Place(*beside)))
                    self.expected = beside
                return made
            except ConfigError:
                raise
            except HorovodInternalError as error:
                # Somebody died while the ranks met, or the coordinator said that they change. The
                # state is as it was, so the report still holds.
                self._failure = error

    def report(self, report: Report, error: HorovodInternalError | None = None) -> None:
        """Says how far this process has come, before it asks for its next seat.

        Args:
            report: That.
            error: Why it asks; None: it was interrupted.
        """
        self._report = report
        self._failure = error

    def check(self) -> None:
        """Raises EpochOver once the ranks change. For the thread that meets the others."""
        if self._changed:
            raise EpochOver("the ranks of the job changed while they met")

    def _take_seat(self) -> tuple[int, ...] | None:
        """Waits for a seat, and puts it into the environment.

        Returns:
            For a process that comes to a running job: the place that it will have. It gets an
            engine of its own meanwhile, and the others wait for it only once it trains.
        """
        error, self._failure = self._failure, None
        meeting = MeetingPoint(self._channel.link.getsockname()[0])
        culprit = error.culprit if isinstance(error, PeerLost | Timeout) else None
        with self._lock:
            self._seat = None
            self._changed = False
            self._question = self._verdict = None
            self._say(
                {
                    "kind": "ready",
                    "address": meeting.address,
                    "master_port": meeting.master_port,
                    "beside": self._fresh,
                    "report": vars(self._report),
                    "sets": process_sets.carried(),
                    "culprit": culprit,
                    "why": "" if error is None else str(error),
                }
            )
            self._lock.wait_for(lambda: self._seat or self._over)
            seat = self._take_message()
        if seat is None:
            meeting.close()
            if self._removed:
                raise Removed(0)
            raise Aborted(self._over)
        self._fresh = False
        if seat["kind"] == "beside":
            meeting.close()
            os.environ.update(_variables(Place(0, 1, 0, 1, 0, 1)))
            return tuple(int(seat[name]) for name in Place._fields)
        self._use(seat, meeting)
        return None

    def _take_message(self) -> Message | None:
        seat, self._seat = self._seat, None
        return seat

    def _use(self, seat: Message, meeting: MeetingPoint) -> None:
        """Puts a seat where the launcher's variables are: `environment` reads them from there."""
        if self._meeting is not None:
            self._meeting.close()
        self._meeting = None
        os.environ.pop("HOROACC_RENDEZVOUS_FD", None)
        if seat["rank"] == 0 and int(seat["size"]) > 1:  # one rank meets nobody
            os.environ["HOROACC_RENDEZVOUS_FD"] = str(meeting.lend())
            self._meeting = meeting
        else:
            meeting.close()
        os.environ.update(_variables(Place(*(int(seat[name]) for name in Place._fields))))
        os.environ.update(meeting_variables(str(seat["address"]), int(seat["master_port"])))
        process_sets.take_slots(seat["sets"])
        # Of this epoch: a process that was left out of it cannot meet its ranks. Who reads the
        # network does not learn it.
        own = hmac.digest(self._secret, f"epoch {seat['salt']}".encode(), hashlib.sha256)
        os.environ["HOROACC_SECRET"] = own.hex()

    # --- news ---------------------------------------------------------------------------------

    def look(self) -> News | None:
        """Makes a check: all ranks make theirs at the same places of the training.

        Without news this reads a field of this process. With news it waits until the coordinator
        knows how many checks each rank has made, which takes as long as a message.

        Returns:
            The news, at the same check on all ranks; mostly None.

        Raises:
            Aborted: The coordinator is gone.
        """
        with self._lock:
            if self._question is None:
                self._checks += 1
                return None
            self._lock.wait_for(lambda: self._verdict or self._question is None or self._over)
            self._checks += 1
            verdict = self._verdict
            if verdict is None:
                if self._over and not self._removed:
                    raise Aborted(self._over)
                return None
            if self._checks < int(verdict["at"]):
                return None
            self._question = self._verdict = None
        return News(float(verdict["time"]), HostUpdateResult(int(verdict["change"])))

    # --- the thread ---------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelError as error:
            self._over = self._over or f"the job's coordinator is gone: {error}"

    def _read(self) -> None:
        why = ""
        while not why:
            try:
                for message in self._channel.wait(None):
                    with self._lock:
                        self._take(message)
                        self._lock.notify_all()
            except (ChannelError, ValueError, KeyError) as error:
                why = f"the job's coordinator is gone: {error}"
        with self._lock:
            self._over = self._over or why
            self._changed = True
            self._lock.notify_all()

    def _take(self, message: Message) -> None:
        kind: Any = message["kind"]
        if kind == "beside":
            self._seat = message
        elif kind == "seat":
            self._seat = message
            self.epoch, self.sync = int(message["epoch"]), bool(message["sync"])
            self.recover, self.level = str(message["recover"]), bool(message["level"])
            self._checks = 0
            self._changed = False
            self._question = self._verdict = None
        elif kind == "leave":
            self._removed = True
            self._over = str(message["why"])
        elif kind == "change":
            if int(message["epoch"]) == self.epoch:
                self._changed = True
                if message["cut"]:
                    process.cut()
        elif kind == "question":
            self._question, self._verdict = int(message["question"]), None
            self._say({"kind": "checks", "question": self._question, "count": self._checks})
        elif kind == "verdict" and message["question"] == self._question:
            if message["at"] is None:
                self._question = self._verdict = None
            else:
                self._verdict = message


def _variables(place: Place) -> dict[str, str]:
    """A place's variables. The agent has named the host, as discovery knows it."""
    variables = place.variables()
    del variables["HOROVOD_HOSTNAME"]
    return variables


class _Process:
    def __init__(self) -> None:
        self.member: Member | None = None


_process = _Process()


def member() -> Member:
    """Gives this process's membership, which its first call begins."""
    if _process.member is None:
        _process.member = Member()
    return _process.member


def epoch() -> int:
    """Counts the changes of the job's ranks.

    Returns:
        The number of the present epoch, from 1; 0 if the job is not elastic.
    """
    return member().epoch if process.is_elastic() else 0


def expected_place() -> tuple[int, ...] | None:
    """Gives the place that this process will have about, while it prepares itself for a job."""
    return member().expected if process.is_elastic() else None
