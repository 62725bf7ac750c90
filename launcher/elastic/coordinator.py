"""The coordinator of an elastic job: hears agents and workers, and hands out seats.

It lives in the loop of horoaccrun, in one thread. `membership` has the rules; here are the
connections, the deadlines and the order in which things are said. Before a new epoch begins, each
worker of the one before that is not in it has ended, or has been killed and its end been seen, or
its host is cut off: its connections end with the epoch, whose secret it does not learn.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.door import Door, Loop
from horoacc.launcher.elastic.history import History
from horoacc.launcher.elastic.interruption import Interruption
from horoacc.launcher.elastic.membership import (
    INFINITE,
    Epoch,
    Membership,
    Phase,
    Report,
    Worker,
)
from horoacc.launcher.output import Printer, RankStream

# Between an error that names a worker as the cause, and the end of that worker: it may have ended
# by itself, or come for a seat.
_CULPRIT_SECONDS = 3.0
# Ranks notice by themselves that another is gone. One that has not by then has its calls ended.
_CUT_SECONDS = 5.0


class Engine(Protocol):
    """Starts agents: mpirun, or another program that the cluster has for it."""

    def start_agent(self, host: str, lost: Callable[[str], None]) -> None:
        """Starts an agent; `lost` is told why, if it ends. OSError: it cannot be started."""

    def end(self) -> None:
        """Ends all agents that are left."""


@dataclass
class Agent:
    """An agent, from the time when it is asked for."""

    host: str
    channel: Channel | None = None
    due: float = INFINITE
    """When it has to be there."""
    to_start: list[Worker] = field(default_factory=list)


@dataclass
class Times:
    """Deadlines, in seconds."""

    shortage: float
    """How long a job may lack ranks."""
    hang: float
    """How long a rank may go on while the others wait for it; 0: any time."""
    agent: float = 60.0
    """How long an agent may take to start."""


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
        times: Times,
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
        self.streams: dict[int, dict[str, RankStream]] = {}
        """By worker and name."""
        self._open: set[tuple[int, str]] = set()  # those of which more may come
        self._loop = loop
        self._printer = printer
        self._engine = engine
        self._command = command
        self._secret = secret
        self._times = times
        self._history = history
        self._verbose = verbose
        self._give_up = give_up
        self._agents: dict[str, Agent] = {}
        self._channels: dict[int, Channel] = {}
        self._interruption = Interruption(self._tell_members)
        self._short_since: float | None = time.monotonic()
        self._suspects: dict[int, float] = {}
        self._told_change = 0  # the epoch whose members know that it is over
        self._cut_at = INFINITE
        self._stopping = False
        self._killed: set[int] = set()
        self.door = Door(loop, secret, self._greet)

    @property
    def finished(self) -> bool:
        """Whether no worker is left and none will be started."""
        if self.membership.live():
            return False
        return (self._stopping or self.membership.over) and not self._open

    def tail(self, worker: Worker) -> Sequence[bytes]:
        """The last lines of a worker on stderr."""
        return self.streams[worker.number]["stderr"].tail

    def close(self) -> None:
        """Ends the agents and all connections."""
        for agent in self._agents.values():
            if agent.channel is not None:
                self._tell(agent.channel, {"kind": "finish"})
        self._engine.end()
        for channel in self._channels.values():
            self._drop(channel)
        for agent in self._agents.values():
            if agent.channel is not None:
                self._drop(agent.channel)
        self.door.close()
        self._history.close()

    # --- what the loop and its owner call -----------------------------------------------------

    def look(self) -> None:
        """The membership's hosts have changed."""
        self._settle()

    def signal_all(self, number: int) -> None:
        """Ends the job: every worker gets a signal."""
        self._stopping = True
        for worker in self.membership.live():
            self._signal(worker, number)

    def give_up_workers(self) -> None:
        """Takes all workers for ended, whose agents do not answer."""
        for agent in list(self._agents.values()):
            self._lose_agent(agent, "")

    def on_time(self, now: float) -> float:
        """Does what is due, and says when the next thing is."""
        for agent in list(self._agents.values()):
            if agent.channel is None and now >= agent.due:
                self._lose_agent(agent, f"its agent did not answer in {self._times.agent:g} s")
        for number, since in list(self._suspects.items()):
            if now >= since:
                self._expel(number)
        self._settle()
        if self._short_since is not None and now >= self._short_since + self._times.shortage:
            self._fail(
                f"for {self._times.shortage:g} s the job has not had the ranks that it needs: "
                f"{self.membership.shortage()} (--elastic-timeout)"
            )
        deadlines = [
            self.membership.next_look(now),
            INFINITE if self._short_since is None else self._short_since + self._times.shortage,
            self._cut_at,
            *self._suspects.values(),
            *(agent.due for agent in self._agents.values() if agent.channel is None),
            self.door.on_time(now),
        ]
        return INFINITE if self._stopping else min(deadlines)

    # --- connections --------------------------------------------------------------------------

    def _greet(self, channel: Channel, hello: Message, more: list[Message]) -> None:
        """Takes a connection that has proved the secret, and what came with its first message."""
        if not self._assign(channel, hello):
            channel.close()
            return
        self._loop.watch(channel.fileno(), lambda: self._hear(channel, hello))
        for message in more:
            self._take(channel, hello, message)
        self._settle()

    def _assign(self, channel: Channel, hello: Message) -> bool:
        """Gives a connection to its agent or worker; False: there is none that lacks one."""
        if hello.get("kind") == "agent":
            agent = self._agents.get(str(hello.get("host")))
            if agent is None or agent.channel is not None:
                return False
            agent.channel = channel
            for worker in agent.to_start:
                self._start(agent, worker)
            agent.to_start.clear()
        elif hello.get("kind") == "worker":
            number = int(hello.get("worker", -1))
            known = self.membership.workers.get(number)
            if known is None or not known.alive or number in self._channels:
                return False
            self._channels[number] = channel
        return hello.get("kind") in ("agent", "worker")

    def _hear(self, channel: Channel, hello: Message) -> None:
        try:
            for message in channel.receive():
                self._take(channel, hello, message)
        except (ChannelError, ValueError, KeyError, TypeError) as error:
            self._drop(channel)
            if hello["kind"] == "agent":
                self._lose_agent(self._agents[hello["host"]], f"its agent is gone: {error}")
            else:
                # Its agent tells of its end; until then it can get no seat.
                self._channels.pop(int(hello["worker"]), None)
                self._kill(self.membership.workers[int(hello["worker"])])
        self._settle()

    def _take(self, channel: Channel, hello: Message, message: Message) -> None:
        if hello["kind"] == "agent":
            self._take_from_agent(hello["host"], message)
        elif self._channels.get(int(hello["worker"])) is channel:
            self._take_from_worker(self.membership.workers[int(hello["worker"])], message)

    def _tell(self, channel: Channel | None, message: Message) -> bool:
        if channel is None:
            return False
        try:
            channel.send(message)
        except ChannelError:
            return False  # the reading side notices the end, or the agent tells of it
        return True

    def _drop(self, channel: Channel) -> None:
        if channel.fileno() >= 0:
            self._loop.unwatch(channel.fileno())
            channel.close()

    # --- agents -------------------------------------------------------------------------------

    def _take_from_agent(self, host: str, message: Message) -> None:
        kind = message["kind"]
        if kind == "output":
            self._output(int(message["worker"]), str(message["stream"]), message.get("body", b""))
        elif kind == "ended":
            worker = self.membership.workers[int(message["worker"])]
            if worker.host == host:
                self._worker_ended(worker, int(message["status"]))
        elif kind == "drain":
            self._printer.say(f"{host} is asked to end: its ranks leave at their next check")
            self.membership.drain(host)
        else:
            raise ChannelError(f"a message of unknown kind '{kind}'")

    def _output(self, worker: int, name: str, data: bytes) -> None:
        """Takes bytes of a worker; none are the end of the stream."""
        if (worker, name) in self._open:
            self.streams[worker][name].feed(data)
            if not data:
                self._open.discard((worker, name))

    def _lose_agent(self, agent: Agent, why: str) -> None:
        """A host is cut off: its workers are lost, whatever they do."""
        if self._agents.get(agent.host) is not agent:
            return
        del self._agents[agent.host]
        if agent.channel is not None:
            self._drop(agent.channel)
        if self._stopping or self.membership.over:
            why = ""
        elif not self.membership.hosts[agent.host].draining:
            self._printer.say(f"host {agent.host} is lost: {why}")
            self.membership.lose_host(agent.host, time.monotonic())
        for worker in self.membership.live():
            if worker.host == agent.host and worker.alive:
                self._worker_ended(worker, -9, f"host {agent.host} was lost")
        for number, name in list(self._open):
            if self.membership.workers[number].host == agent.host:
                self._output(number, name, b"")
        self._settle()

    def _start(self, agent: Agent, worker: Worker) -> None:
        message: Message = {"kind": "start", "worker": worker.number, "command": self._command}
        if not self._tell(agent.channel, message):
            self._lose_agent(agent, "its agent does not read")

    def _signal(self, worker: Worker, number: int) -> None:
        agent = self._agents.get(worker.host)
        if agent is not None and worker in agent.to_start:
            agent.to_start.remove(worker)
            self._worker_ended(worker, -number)
            for name in self.streams[worker.number]:
                self._output(worker.number, name, b"")
        elif agent is not None:
            self._tell(agent.channel, {"kind": "signal", "worker": worker.number, "number": number})

    def _kill(self, worker: Worker) -> None:
        if worker.alive and worker.number not in self._killed:
            self._killed.add(worker.number)
            self._signal(worker, 9)

    # --- workers ------------------------------------------------------------------------------

    def _worker_ended(self, worker: Worker, status: int, how: str = "") -> None:
        if not worker.alive:
            return
        now = time.monotonic()
        dismissed = worker.phase is Phase.DISMISSED
        self.membership.ended(worker, status, now)
        self._suspects.pop(worker.number, None)
        if (channel := self._channels.pop(worker.number, None)) is not None:
            self._drop(channel)
        if status != 0 and not dismissed and not self._stopping:
            self.failed = worker
            self._history.failed(worker, status, how)
        self._settle()

    def _take_from_worker(self, worker: Worker, message: Message) -> None:
        kind = message["kind"]
        now = time.monotonic()
        if kind == "ready":
            self.membership.ask(
                worker,
                str(message["address"]),
                int(message["master_port"]),
                Report(**message["report"]),
                now,
            )
            self._suspect(message.get("culprit"), worker, now)
            self._history.asked(worker, str(message.get("why", "")))
        elif kind == "checks":
            members = [member.number for member in self.membership.members()]
            self._interruption.take_count(
                worker.number, int(message["question"]), int(message["count"]), members
            )
        else:
            raise ChannelError(f"a message of unknown kind '{kind}'")

    def _suspect(self, culprit: object, by: Worker, now: float) -> None:
        """An error names the rank that caused it: it must end or come for a seat, too."""
        epoch = self.membership.epoch
        if epoch is None or by not in epoch.workers or not isinstance(culprit, int):
            return
        if 0 <= culprit < len(epoch.workers):
            number = epoch.workers[culprit].number
            self._suspects.setdefault(number, now + _CULPRIT_SECONDS)

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
        """Does all that follows from what is known now."""
        if self._stopping:
            return
        members = self.membership
        now = time.monotonic()
        for worker in members.to_dismiss():
            worker.phase = Phase.DISMISSED
            why = "the job is over" if members.over else "its host or slot left the job"
            self._tell(self._channels.get(worker.number), {"kind": "leave", "why": why})
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
                self._suspects.setdefault(worker.number, min(waiting) + self._times.hang)
        epoch = members.form()
        if epoch is not None:
            self._begin(epoch)
        self._fill(now)
        if not members.over:
            self._interruption.want(members.change_due())
            lacking = members.epoch is None or any(
                w.phase is not Phase.SEATED for w in members.epoch.workers
            )
            if not lacking:
                self._short_since = None
            elif self._short_since is None:
                self._short_since = now
            if (
                not members.live()
                and not members.wanted(now)
                and members.next_look(now) == INFINITE
            ):
                self._end_without_hosts()
        else:
            self._short_since = None

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
        for host, slot in self.membership.wanted(now):
            agent = self._agents.get(host)
            if agent is None:
                agent = Agent(host, due=now + self._times.agent)
                self._agents[host] = agent
                try:
                    self._engine.start_agent(host, functools.partial(self._lose_agent, agent))
                except OSError as error:
                    self._lose_agent(agent, f"no agent can be started there: {error.strerror}")
                    continue
            worker = self.membership.add(host, slot)
            names = ("stdout", "stderr")
            self.streams[worker.number] = {n: self._loop.stream(worker.number, n) for n in names}
            self._open.update((worker.number, name) for name in names)
            if self.membership.epoch is not None:
                for stream in self.streams[worker.number].values():
                    stream.rank = -1
            if agent.channel is None:
                agent.to_start.append(worker)
            else:
                self._start(agent, worker)

    # --- epochs -------------------------------------------------------------------------------

    def _begin(self, epoch: Epoch) -> None:
        if 0 < self.membership.limits.resets < epoch.number - 1:
            self._fail(
                f"the job has been reset {self.membership.limits.resets} times, as often as "
                "--reset-limit allows"
            )
            return
        self._interruption.over()
        self._cut_at = INFINITE
        self._suspects.clear()
        first = epoch.workers[0]
        host = first.address.rpartition(":")[0].strip("[]")
        secret = hmac.new(self._secret.encode(), b"epoch %d" % epoch.number, hashlib.sha256)
        for worker in epoch.workers:
            assert worker.seat is not None
            for stream in self.streams[worker.number].values():
                stream.rank = worker.seat.rank
            self._tell(
                self._channels.get(worker.number),
                {
                    "kind": "seat",
                    **vars(worker.seat),
                    "address": first.address,
                    "master": f"{host}:{first.master_port}",
                    "secret": secret.hexdigest(),
                    "sync": epoch.sync,
                    "recover": epoch.recover,
                    "level": worker.level,
                },
            )
        line = self._history.began(epoch)
        if epoch.number > 1 or self._verbose:
            self._printer.say(line)

    def _tell_members(self, message: Message) -> None:
        for worker in self.membership.members():
            self._tell(self._channels.get(worker.number), message)
