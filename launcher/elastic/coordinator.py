"""The coordinator of an elastic job: hears agents and workers, and hands out seats.

It lives in the loop of horoaccrun, in one thread. `membership` has the rules; here are the
connections, the deadlines and the order in which things are said. Before a new epoch begins, each
worker of the one before that is not in it has ended, or has been killed and its end been seen, or
its host is cut off: its connections end with the epoch, whose secret it does not learn.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable

from horoacc.launcher.elastic.agents import Agents, Engine
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.deadlines import Deadlines
from horoacc.launcher.elastic.door import Door, Loop, drop, tell
from horoacc.launcher.elastic.history import History
from horoacc.launcher.elastic.interruption import Interruption
from horoacc.launcher.elastic.looks import Looks, Shortage
from horoacc.launcher.elastic.membership import (
    INFINITE,
    Epoch,
    Membership,
    Phase,
    Report,
    Worker,
)
from horoacc.launcher.elastic.process_sets import ProcessSets
from horoacc.launcher.output import Printer

# Between an error that names a worker as the cause, and the end of that worker: it may have ended
# by itself, or come for a seat.
_CULPRIT_SECONDS = 3.0
# Between SIGKILL and the agent's word that a worker is gone.
_GONE_SECONDS = 15.0
# Ranks notice by themselves that another is gone. One that has not by then has its calls ended.
_CUT_SECONDS = 5.0


class Coordinator:
    """The coordinator of one job."""

    def __init__(
        self,
        loop: Loop,
        printer: Printer,
        membership: Membership,
        engine: Engine,
        command: list[str],
        secret: str,
        times: Deadlines,
        history: History,
        give_up: Callable[[], None],
        verbose: bool = False,
    ) -> None:
        """Makes a coordinator without hosts.

        Args:
            loop: The supervisor of the job.
            printer: Where messages for the user go.
            membership: The rules.
            engine: Starts agents.
            command: The workers' command.
            secret: The job's, in hexadecimal digits.
            times: Deadlines.
            history: What happened, for the user.
            give_up: Ends the job, by a call of `signal_all` among others.
            verbose: Whether to tell of the first epoch, too.
        """
        self.membership = membership
        self.error = ""
        """Why the job ended, if it did not end by itself."""
        self.failed: Worker | None = None
        """The last worker that failed."""
        self.failed_late = False
        """Whether it did after another had ended without an error."""
        self.agents = Agents(loop, engine, command, times.agent, self)
        self.looks = Looks(membership, self.agents, self._shortage)
        self._loop = loop
        self._printer = printer
        self._times = times
        self._history = history
        self._verbose = verbose
        self._give_up = give_up
        self._channels: dict[int, Channel] = {}
        self._interruption = Interruption(self._tell_members)
        self._process_sets = ProcessSets()
        self._short_since: float | None = time.monotonic()
        self._short_before = 0.0  # since the last epoch ended, before the present shortage
        self._suspects: dict[int, float] = {}
        self._told_change = 0  # the epoch whose members know that it is over
        self._cut_at = INFINITE
        self._stopping = False
        self._settling = self._unsettled = False
        self._waiting_spares: list[Worker] = []  # until there is an epoch
        self._due: dict[int, float] = {}  # when workers that were told to end have to be gone
        self._start_due: dict[int, float] = {}  # when workers that start have to be there
        self._beside: set[int] = set()  # they prepare themselves, after init
        self._killed: set[int] = set()
        self.door = Door(loop, secret, times.silence, self._greet)

    @property
    def finished(self) -> bool:
        """Whether no worker is left and none will be started."""
        over = self._stopping or self.membership.over
        return over and not self.membership.live() and self.agents.drained

    def close(self) -> None:
        """Ends the agents and all connections."""
        self.agents.close()
        for channel in self._channels.values():
            drop(self._loop, channel)
        self.door.close()
        self._history.close()

    # --- what the loop and its owner call -----------------------------------------------------

    def look(self) -> None:
        """The membership's hosts have changed."""
        self._settle()

    def signal_all(self, number: int) -> None:
        """Ends the job: every worker gets a signal."""
        self._stopping = self.looks.ending = True
        for worker in self.membership.live():
            self.agents.signal(worker, number)

    def on_time(self, now: float) -> float:
        """Does what is due, and says when the next thing is."""
        agent_due = self.agents.on_time(now)
        for number, since in list(self._suspects.items()):
            if now >= since:
                self._expel(number)
        for number, due in list(self._due.items()):
            if now >= due:
                self._insist(self.membership.workers[number])
        for number, due in list(self._start_due.items()):
            worker = self.membership.workers[number]
            if now >= due and worker.alive and number not in self._killed:
                where = "training" if number in self._beside else "init()"
                self._printer.say(
                    f"a process on {worker.host} has not come to {where}: it is killed"
                )
                self._kill(worker)
        silent = self._interruption.unanswered(now - self._times.hang) if self._times.hang else []
        for number in silent:
            if number not in self._killed:
                self._printer.say("a rank does not answer: it is killed")
                self._kill(self.membership.workers[number])
        self._settle()
        if now >= self._short_until():
            self._fail(
                f"for {self._times.shortage:g} s the job has not had the ranks that it needs: "
                f"{self.membership.shortage()} (--elastic-timeout)"
            )
        silent_at = self._interruption.asked_at + self._times.hang
        deadlines = [
            self.membership.next_look(now),
            self._short_until(),
            self._cut_at,
            *self._suspects.values(),
            *self._due.values(),
            *(due for due in self._start_due.values() if due > now),
            *([silent_at] if self._times.hang and silent_at > now else []),
            agent_due,
            self.door.on_time(now),
        ]
        due = self.looks.on_time(now)  # also while the job ends
        return due if self._stopping else min(due, *deadlines)

    def _short_until(self) -> float:
        """When the job has lacked ranks for too long."""
        if self._short_since is None:
            return INFINITE
        return self._short_since + self._times.shortage - self._short_before

    def _shortage(self) -> Shortage | None:
        since = self._short_since
        return None if since is None else Shortage(since, self._short_until())

    # --- connections --------------------------------------------------------------------------

    def _greet(self, channel: Channel, hello: Message, more: list[Message]) -> None:
        """Takes a connection that has proved the secret, and what came with its first message."""
        take = None
        if hello.get("kind") == "agent":
            take = self.agents.greet(channel, hello)
        elif hello.get("kind") == "worker" and isinstance(hello.get("worker"), int):
            worker = self.membership.workers.get(hello["worker"])
            if worker is not None and worker.alive and worker.number not in self._channels:
                self._channels[worker.number] = channel
                take = functools.partial(self._take, worker)
        if take is None:  # of a worker that has been given up, say
            channel.close()
            return
        self._loop.watch(
            channel.fileno(), lambda: self._hear(channel, hello, take, channel.receive)
        )
        self._hear(channel, hello, take, lambda: more)

    def _hear(
        self,
        channel: Channel,
        hello: Message,
        take: Callable[[Message], None],
        receive: Callable[[], list[Message]],
    ) -> None:
        self._settling = True  # once all that came has been taken
        try:
            for message in receive():
                take(message)
        except (ChannelError, ValueError, KeyError, TypeError) as error:
            if hello["kind"] == "agent":
                self.agents.lose_channel(channel, f"its agent is gone: {error}")
            else:
                # Its agent tells of its end; until then it can get no seat.
                worker = self.membership.workers[int(hello["worker"])]
                self._channels.pop(worker.number, None)
                if isinstance(error, ChannelError) and error.host_gone:
                    self.agents.lose_host(worker.host, str(error))
                else:
                    self._kill(worker)
            drop(self._loop, channel)
        finally:
            self._settling = False
        self._settle()

    # --- what agents tell ---------------------------------------------------------------------

    def host_lost(self, host: str, why: str) -> None:
        """A host is cut off."""
        record = self.membership.hosts[host]
        if not (self._stopping or self.membership.over or record.draining):
            self._printer.say(f"host {host} is lost: {why}")
            self.membership.lose_host(host, time.monotonic())

    def host_drains(self, host: str) -> None:
        """A host is to be left."""
        self._printer.say(f"{host} is asked to end: its ranks leave at their next check")
        self.membership.drain(host)

    def slots_of(self, host: str) -> int:
        """How many workers may run on a host."""
        return self.membership.hosts[host].slots

    def worker_ended(self, number: int, status: int, how: str = "") -> None:
        """A worker's process has ended."""
        worker = self.membership.workers[number]
        over, never = self.membership.over, self.membership.epoch is None
        failed = self.membership.ended(worker, status, time.monotonic())
        if status == 0 and never and worker.phase is Phase.GONE and failed:
            self._fail(
                "a process ended before any had called horoacc.init(): an elastic job is one of "
                "processes that train together"
            )
            return
        self.failed_late = self.failed_late or (failed and over)
        if status == 0 and failed and not self._stopping:
            how = "ended without training with the others, in a function that elastic.run wraps"
            self._printer.say(f"a new rank on {worker.host} {how}")
        self._suspects.pop(number, None)
        self._due.pop(number, None)
        if (channel := self._channels.pop(number, None)) is not None:
            drop(self._loop, channel)
        if failed and not self._stopping:
            self.failed = worker
            self._history.failed(worker, status, how)
        self._settle()

    def _kill(self, worker: Worker) -> None:
        if worker.alive and worker.number not in self._killed:
            self._killed.add(worker.number)
            self._due[worker.number] = time.monotonic() + _GONE_SECONDS
            self.agents.signal(worker, 9)

    def _insist(self, worker: Worker) -> None:
        """A worker that had to end has not: it is killed, or its host is cut off."""
        if worker.number in self._killed:
            self.agents.lose_host(worker.host, "its agent does not end a process that was killed")
        else:
            self._kill(worker)

    # --- workers ------------------------------------------------------------------------------

    def _take(self, worker: Worker, message: Message) -> None:
        kind = message["kind"]
        now = time.monotonic()
        beside = kind == "ready" and bool(message["beside"])
        if beside and self.membership.epoch is not None:
            self._prepare(worker)
        elif beside and worker.spare:
            self._waiting_spares.append(worker)
        elif kind == "ready":
            self.membership.ask(
                worker,
                str(message["address"]),
                int(message["master_port"]),
                Report(**message["report"]),
                now,
            )
            self._process_sets.take(worker, message["sets"], self.membership.epoch)
            self._suspect(message.get("culprit"), worker, now)
            self._history.asked(worker, str(message.get("why", "")))
        elif kind == "checks":
            self._interruption.take_count(
                worker.number, int(message["question"]), int(message["count"])
            )
        else:
            raise ChannelError(f"a message of unknown kind '{kind}'")

    def _prepare(self, worker: Worker) -> None:
        """The others go on while a new worker makes its model and reads its data."""
        self._beside.add(worker.number)
        seat = vars(self.membership.expected(worker))
        tell(self._channels.get(worker.number), {"kind": "beside", **seat})

    def _suspect(self, culprit: object, by: Worker, now: float) -> None:
        """An error names the rank that caused it: it must end or come for a seat, too."""
        epoch = self.membership.epoch
        if epoch is None or by not in epoch.workers or not isinstance(culprit, int):
            return
        if 0 <= culprit < len(epoch.workers):
            self._suspect_by(epoch.workers[culprit].number, now + _CULPRIT_SECONDS)

    def _suspect_by(self, number: int, due: float) -> None:
        self._suspects[number] = min(due, self._suspects.get(number, INFINITE))

    def _expel(self, number: int) -> None:
        self._suspects.pop(number, None)
        worker = self.membership.workers[number]
        if worker in self.membership.waits_for():
            assert worker.seat is not None
            self._printer.say(
                f"rank {worker.seat.rank} does not come back after an error that the others "
                "found in it: it is killed"
            )
            self._kill(worker)

    def _settle(self) -> None:
        """Does all that follows from what is known now, and then what has come up meanwhile."""
        self._unsettled = True
        if self._settling:
            return
        self._settling = True
        try:
            while self._unsettled and not self._stopping:
                self._unsettled = False
                self._settle_once()
        finally:
            self._settling = False

    def _settle_once(self) -> None:
        members = self.membership
        now = time.monotonic()
        for worker in members.not_needed():
            if worker.phase is Phase.STARTING:
                worker.phase = Phase.DISMISSED
                self._kill(worker)
        for worker in members.to_dismiss():
            worker.phase = Phase.DISMISSED
            self._due[worker.number] = now + self._times.leave
            why = members.why_leaves(worker)
            self._history.dismissed(worker, why)
            tell(self._channels.get(worker.number), {"kind": "leave", "why": why})
        if members.waits_for() and members.epoch is not None:
            # Those that still meet the others need not wait any longer.
            number = members.epoch.number
            if self._told_change != number:
                self._told_change = number
                self._cut_at = now + _CUT_SECONDS
                self._tell_members({"kind": "change", "epoch": number, "cut": False})
            elif now >= self._cut_at:
                self._cut_at = INFINITE
                self._tell_members({"kind": "change", "epoch": number, "cut": True})
        if self._times.hang > 0:
            waiting = [w.waiting_since for w in members.members() if w.phase is Phase.WAITING]
            for worker in members.waits_for() if waiting else []:
                self._suspect_by(worker.number, min(waiting) + self._times.hang)
        hosts = members.hosts
        self.agents.finish(
            lambda number: members.workers[number].host,
            lambda host: not hosts[host].here or hosts[host].draining,
        )
        epoch = members.form()
        if epoch is not None:
            self._begin(epoch)
        self._fill(now)
        if not members.over:
            self._interruption.want(members.change_due(now), now, members.numbers())
            broken = members.epoch is None or any(
                w.phase is not Phase.SEATED for w in members.epoch.workers
            )
            waits = broken and not members.waits_for()  # else the hang limit counts
            self._watch_starts(waits, now)
            lacks = waits and not members.enough()
            if lacks and self._short_since is None:
                self._short_since = now
            elif not lacks and self._short_since is not None:
                self._short_before += now - self._short_since
                self._short_since = None
            if not waits:
                self._short_before = 0.0
            if (
                not members.live()
                and not members.wanted(now)
                and members.next_look(now) == INFINITE
            ):
                self._end_without_hosts()
        else:
            self._short_since = None

    def _watch_starts(self, waits: bool, now: float) -> None:
        """A process has to come to `init` in time, and the job does not wait for one for ever."""
        for worker in self.membership.live():
            starts = worker.phase is Phase.STARTING
            if starts and (waits or worker.number not in self._beside):
                self._start_due.setdefault(worker.number, now + self._times.start)
            else:
                self._start_due.pop(worker.number, None)

    def _end_without_hosts(self) -> None:
        if all(host.here for host in self.membership.hosts.values()) and self.membership.hosts:
            self._fail(f"no host is left: {self.membership.shortage()}")

    def _fail(self, why: str) -> None:
        """Ends the job."""
        if self._stopping:
            return
        self.error = why
        self._history.ended(why)
        self._give_up()

    def _fill(self, now: float) -> None:
        while wanted := self.membership.wanted(now):  # others, if a host is lost meanwhile
            host, slot = wanted[0]
            worker = self.membership.add(host, slot, now)
            self.agents.start(worker)
            if self.membership.epoch is not None:
                self._number(worker, -1)

    def _number(self, worker: Worker, rank: int) -> None:
        """Has a worker's lines come with a rank; -1: it has none yet."""
        for stream in self.agents.streams[worker.number].values():
            stream.rank = rank

    # --- epochs -------------------------------------------------------------------------------

    def _begin(self, epoch: Epoch) -> None:
        if 0 < self.membership.limits.resets < epoch.number - 1:
            self._fail(
                "Horovod was shutdown because number of resets during elastic job exceeded limit: "
                f"{self.membership.limits.resets} (--reset-limit)"  # programs look for these words
            )
            return
        self._interruption.over()
        self._cut_at = INFINITE
        self._suspects.clear()
        first = epoch.workers[0]
        sets = self._process_sets.carried_into(epoch)
        salt = secrets.token_hex(32)
        for worker in epoch.workers:
            assert worker.seat is not None
            self._number(worker, worker.seat.rank)
            tell(
                self._channels.get(worker.number),
                {
                    "kind": "seat",
                    **vars(worker.seat),
                    "address": first.address,
                    "master_port": first.master_port,
                    "salt": salt,
                    "sync": epoch.sync,
                    "recover": epoch.recover,
                    "level": worker.level,
                    "sets": sets,
                },
            )
        for worker in self._waiting_spares:
            self._prepare(worker)
        self._waiting_spares.clear()
        line = self._history.began(epoch)
        if epoch.number > 1 or self._verbose:
            self._printer.say(line)

    def _tell_members(self, message: Message) -> None:
        for worker in self.membership.members():
            tell(self._channels.get(worker.number), message)
