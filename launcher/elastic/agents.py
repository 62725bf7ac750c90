"""The agents of an elastic job, as the coordinator sees them: they start, signal and end workers.

An agent is asked for when the first worker of its host is to be started. If it ends, or does not
answer, its host is cut off, and its workers count as ended, whatever they do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.door import Loop, drop, tell
from horoacc.launcher.elastic.membership import INFINITE, Worker
from horoacc.launcher.output import RankStream

if TYPE_CHECKING:
    from horoacc.launcher.elastic.looks import Looks

_STREAMS = ("stdout", "stderr")


class Engine(Protocol):
    """Starts agents: mpirun, or another program that the cluster has for it."""

    def start_agent(self, host: str, number: int, lost: Callable[[str], None]) -> None:
        """Starts an agent; `lost` is told why, if it ends. OSError: it cannot be started.

        The agent says the number when it comes: of two that were started on a host, one after the
        other, the first may come late, and is not taken for the second.
        """

    def stop(self, host: str) -> None:
        """Ends the agent of a host, if it is still there."""

    def end(self) -> None:
        """Ends all agents that are left."""


class Owner(Protocol):
    """The coordinator, as far as agents tell it something."""

    looks: Looks

    def worker_ended(self, number: int, status: int, how: str = "") -> None:
        """A worker's process has ended."""

    def host_lost(self, host: str, why: str) -> None:
        """A host is cut off; its workers' ends come next."""

    def host_drains(self, host: str) -> None:
        """A host is to be left."""

    def slots_of(self, host: str) -> int:
        """How many workers may run on a host."""


@dataclass
class Agent:
    """An agent, from the time when it is asked for."""

    host: str
    number: int
    due: float
    """When it has to be there."""
    channel: Channel | None = None
    to_start: list[Worker] = field(default_factory=list)
    workers: set[int] = field(default_factory=set)
    """All that it was to start and that have not ended."""


class Agents:
    """All agents of one job.

    Attributes:
        streams: Of the workers' output, by worker and name.
    """

    def __init__(
        self, loop: Loop, engine: Engine, command: list[str], seconds: float, owner: Owner
    ) -> None:
        """Starts none yet.

        Args:
            loop: The supervisor of the job.
            engine: Starts agents.
            command: The workers' command.
            seconds: How long an agent may take to start.
            owner: Hears of ends.
        """
        self.streams: dict[int, dict[str, RankStream]] = {}
        self._open: set[tuple[int, str]] = set()  # streams of which more may come
        self._loop = loop
        self._engine = engine
        self._command = command
        self._seconds = seconds
        self._owner = owner
        self._agents: dict[str, Agent] = {}
        self._started = 0

    @property
    def drained(self) -> bool:
        """Whether all output of the workers that have ended is here."""
        return not self._open

    def channel(self, host: str) -> Channel | None:
        """The connection of a host's agent, if it has come."""
        agent = self._agents.get(host)
        return None if agent is None else agent.channel

    def tail(self, worker: int) -> Sequence[bytes]:
        """The last lines of a worker on stderr."""
        return self.streams[worker]["stderr"].tail

    def start(self, worker: Worker) -> None:
        """Starts a worker on its host."""
        self.streams[worker.number] = {n: self._loop.stream(worker.number, n) for n in _STREAMS}
        self._open.update((worker.number, name) for name in _STREAMS)
        agent = self._agents.get(worker.host)
        if agent is None:
            self._started += 1
            agent = Agent(worker.host, self._started, time.monotonic() + self._seconds)
            self._agents[worker.host] = agent
            agent.workers.add(worker.number)
            try:
                lost = functools.partial(self.lose, agent)
                self._engine.start_agent(worker.host, agent.number, lost)
            except OSError as error:
                self.lose(agent, f"no agent can be started there: {error.strerror}")
                return
        agent.workers.add(worker.number)
        if agent.channel is None:
            agent.to_start.append(worker)
        else:
            self._start(agent, worker)

    def signal(self, worker: Worker, number: int) -> None:
        """Sends a signal to a worker's process group."""
        agent = self._agents.get(worker.host)
        if agent is None:
            return
        if worker in agent.to_start:
            agent.to_start.remove(worker)
            self._ended(agent, worker.number, -number)
        else:
            tell(agent.channel, {"kind": "signal", "worker": worker.number, "number": number})

    def greet(self, channel: Channel, hello: Message) -> Callable[[Message], None] | None:
        """Takes the connection of an agent. Returns the taker of its messages; None: it is none."""
        agent = self._agents.get(str(hello.get("host")))
        if agent is None or agent.channel is not None or hello.get("number") != agent.number:
            return None
        agent.channel = channel
        for worker in agent.to_start:
            self._start(agent, worker)
        agent.to_start.clear()
        return functools.partial(self._take, agent)

    def finish(self, host_of: Callable[[int], str], is_left: Callable[[str], bool]) -> None:
        """Lets the agents of hosts end on which no worker runs and none will be started.

        Args:
            host_of: Gives the host of a worker.
            is_left: Says whether no worker will be started on a host.
        """
        busy = {host_of(number) for number, _ in self._open}
        for agent in list(self._agents.values()):
            channel, idle = agent.channel, not agent.workers and agent.host not in busy
            if channel is not None and idle and is_left(agent.host):
                del self._agents[agent.host]
                tell(channel, {"kind": "finish"})
                drop(self._loop, channel)

    def lose_channel(self, channel: Channel, why: str) -> None:
        """The connection of an agent has failed."""
        for agent in list(self._agents.values()):
            if agent.channel is channel:
                self.lose(agent, why)

    def lose_host(self, host: str, why: str) -> None:
        """A host is cut off, if it has an agent."""
        if host in self._agents:
            self.lose(self._agents[host], why)

    def lose(self, agent: Agent, why: str) -> None:
        """A host is cut off."""
        if self._agents.get(agent.host) is not agent:
            return
        del self._agents[agent.host]
        if agent.channel is not None:
            drop(self._loop, agent.channel)
        self._engine.stop(agent.host)
        self._owner.host_lost(agent.host, why)
        for number in sorted(agent.workers):
            self._ended(agent, number, -9, f"host {agent.host} was lost")

    def give_up(self) -> None:
        """Takes all workers for ended, whose agents do not answer."""
        for agent in list(self._agents.values()):
            self.lose(agent, "")

    def on_time(self, now: float) -> float:
        """Loses agents that did not come; says when the next one is due."""
        due = [agent for agent in self._agents.values() if agent.channel is None]
        for agent in due:
            if now >= agent.due:
                self.lose(agent, f"its agent did not answer in {self._seconds:g} s")
        return min((agent.due for agent in due if now < agent.due), default=INFINITE)

    def close(self) -> None:
        """Ends them."""
        for agent in self._agents.values():
            tell(agent.channel, {"kind": "finish"})
        self._engine.end()
        for agent in self._agents.values():
            if agent.channel is not None:
                drop(self._loop, agent.channel)

    def _start(self, agent: Agent, worker: Worker) -> None:
        message: Message = {
            "kind": "start", "worker": worker.number, "command": self._command,
            "slots": self._owner.slots_of(worker.host),
        }  # fmt: skip
        if not tell(agent.channel, message):
            self.lose(agent, "its agent does not read")

    def _take(self, agent: Agent, message: Message) -> None:
        kind = message["kind"]
        if kind == "drain":
            self._owner.host_drains(agent.host)
            return
        if kind in ("look", "taken", "told"):
            assert agent.channel is not None
            self._owner.looks.take(agent.channel, message)
            return
        number = int(message["worker"])
        if kind == "output":
            self._output(number, str(message["stream"]), message.get("body", b""))
        elif kind == "ended":
            if number in agent.workers:
                agent.workers.discard(number)
                self._owner.worker_ended(number, int(message["status"]))
        else:
            raise ChannelError(f"a message of unknown kind '{kind}'")

    def _ended(self, agent: Agent, number: int, status: int, how: str = "") -> None:
        """A worker has ended, or counts as ended, and nothing more comes of it."""
        agent.workers.discard(number)
        for name in _STREAMS:
            self._output(number, name, b"")
        self._owner.worker_ended(number, status, how)

    def _output(self, worker: int, name: str, data: bytes) -> None:
        """Takes bytes of a worker; none are the end of the stream."""
        if (worker, name) in self._open:
            self.streams[worker][name].feed(data)
            if not data:
                self._open.discard((worker, name))
