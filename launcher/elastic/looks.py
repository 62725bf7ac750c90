"""How the ranks of an elastic job are: the coordinator has agents ask those of their hosts.

Whoever asks comes to the launcher's socket, or to an agent's, which hands the question on over its
connection. Nothing here waits: an agent has one question at a time, so that one which does not
answer is not sent more than it can take; and of an answer that goes to an agent, or comes from one,
a part goes once the one before has been taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from horoacc.launcher.elastic.agents import Agents
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.door import tell
from horoacc.launcher.elastic.membership import Membership, Phase
from horoacc.launcher.look.asking import HERE_SECONDS, STACK_SECONDS
from horoacc.launcher.look.look_server import BUSY, PART, Reply, framed_status

_MOST_LOOKS = 16
_WAY_SECONDS = 1.0  # more than the ranks of a host have, for the ways there and back
_HANDED_ON_SECONDS = 15.0
# Of all ranks' answers together, about: an agent's other messages go the same way.
_ANSWER_BYTES, _MOST_BYTES = 8 << 20, 64 << 20
_EVENT_BYTES = 160
_MOST_NAMED = 4  # ranks of which is told why they are silent, if no rank answers


class Shortage(NamedTuple):
    """A job lacks ranks."""

    since: float
    until: float
    """When it gives up."""


@dataclass
class _Look:
    """A question to the agents of some hosts."""

    reply: Reply
    message: Message
    due: float
    status: dict[str, Any]
    """What else is told."""
    agents: dict[Channel, list[int]] = field(default_factory=dict)
    """Those that have not answered, and the ranks that they are to ask."""
    parts: dict[Channel, bytearray] = field(default_factory=dict)
    """Of a rank's answer that has not come as a whole, by agent."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why ranks that an agent has asked have answered nothing."""
    size: int = 0
    """Bytes that ranks have answered."""


class _AgentReply(Reply):
    """Somebody asks at an agent: the answer goes there."""

    def __init__(self, agent: Channel, number: int) -> None:
        super().__init__()
        self.due = time.monotonic() + _HANDED_ON_SECONDS
        self.gone = False  # all of the answer
        self._agent = agent
        self._number = number
        self._takes = True

    def taken(self) -> None:
        """The agent has taken the part before."""
        self._takes = True
        self._tell()

    def _tell(self) -> None:
        if self._takes and (self._text or self._over) and not self.gone:
            part = bytes(self._text[:PART])
            del self._text[:PART]
            self._takes, self.gone = False, self._over and not self._text
            message = {"kind": "answer", "look": self._number, "end": self.gone, "body": part}
            tell(self._agent, message)


class Looks:
    """All such questions of one job."""

    def __init__(
        self, membership: Membership, agents: Agents, shortage: Callable[[], Shortage | None]
    ) -> None:
        """Asks nothing yet.

        Args:
            membership: Knows which ranks there are, on which hosts.
            agents: Ask them.
            shortage: Says since when the job has lacked ranks, if it does.
        """
        self.ending = False
        """Whether the job is asked to end."""
        self._membership = membership
        self._agents = agents
        self._shortage = shortage
        self._looks: dict[int, _Look] = {}
        self._asked = 0
        self._present: dict[Channel, int] = {}  # the question that an agent has
        self._handed_on: dict[tuple[Channel, int], _AgentReply] = {}

    def ask(self, question: bytes, reply: Reply) -> None:
        """Has the ranks asked, all at once; `reply` gets what they say, or why none does."""
        try:
            stack, seconds, events = question.split()
            most = max(1, _ANSWER_BYTES // _EVENT_BYTES // max(1, len(self._membership.live())))
            asked, used = int(events), max(0, min(int(events), most))
            line = f"{int(stack) != 0:d} {float(seconds)} {used}"
        except ValueError:  # of no `horoaccrun`
            reply.end()
            return
        if len(self._looks) >= _MOST_LOOKS:
            reply.give(framed_status(BUSY))
            reply.end()
            return
        limit = STACK_SECONDS if line.startswith("1") else HERE_SECONDS
        self._asked += 1
        message = {"kind": "ask", "look": self._asked, "question": line, "seconds": limit}
        # Whoever asks has to know that ranks may keep more events than they tell.
        status: dict[str, Any] = {"events": used} if used < asked else {}
        look = _Look(reply, message, time.monotonic() + limit + _WAY_SECONDS, status)
        self._looks[self._asked] = look
        for host, ranks in self._ranks().items():
            if (agent := self._agents.channel(host)) is not None:
                look.agents[agent] = ranks
                self._go_on(agent)
        self._conclude(self._asked)

    def take(self, agent: Channel, message: Message) -> None:
        """Takes what an agent says: an answer, a question that it has got, or that it goes on.

        Raises:
            ChannelError: It cannot have said that.
        """
        kind, number = message["kind"], int(message["look"])
        if kind == "told":
            self._told(agent, number, message)
        elif kind == "taken":
            if (known := self._handed_on.get((agent, number))) is not None:
                known.taken()
        elif len(self._handed_on) < _MOST_LOOKS:
            self._handed_on[agent, number] = _AgentReply(agent, number)
            self.ask(str(message["question"]).encode(), self._handed_on[agent, number])
        else:
            answer = {"kind": "answer", "look": number, "end": True, "body": framed_status(BUSY)}
            tell(agent, answer)

    def on_time(self, now: float) -> float:
        """Ends what has taken too long; says when it wants to look again."""
        for number, look in list(self._looks.items()):
            if now >= look.due:
                look.agents.clear()
                self._conclude(number)
        kept = {key: to for key, to in self._handed_on.items() if not to.gone and now < to.due}
        self._handed_on = kept
        self._present = {a: number for a, number in self._present.items() if a.fileno() >= 0}
        dues = [*(look.due for look in self._looks.values()), *(to.due for to in kept.values())]
        return min(dues, default=math.inf)

    def _ranks(self) -> dict[str, list[int]]:
        """The ranks of the present epoch that have not left it, by host."""
        found: dict[str, list[int]] = {}
        for worker in self._membership.members():
            if worker.phase is Phase.SEATED and worker.seat is not None:
                found.setdefault(worker.host, []).append(worker.seat.rank)
        return found

    def _go_on(self, agent: Channel) -> None:
        """Has an agent that is free ask the next question."""
        look = next((look for look in self._looks.values() if agent in look.agents), None)
        if look is not None and agent not in self._present:
            self._present[agent] = look.message["look"]
            tell(agent, look.message | {"ranks": look.agents[agent]})

    def _told(self, agent: Channel, number: int, message: Message) -> None:
        if self._present.get(agent) != number:
            raise ChannelError("an answer to no question")
        look = self._looks.get(number)
        if body := message.get("body", b""):
            wanted = look is not None and look.size + len(body) <= _MOST_BYTES
            if look is not None and wanted:
                look.size += len(body)
                text = look.parts.setdefault(agent, bytearray())
                text += body
                if not message.get("more"):
                    look.reply.give(bytes(look.parts.pop(agent)))
            elif look is not None:
                look.parts.pop(agent, None)
            tell(agent, {"kind": "more", "look": number, "wanted": wanted})
            return
        del self._present[agent]
        if look is not None:
            look.agents.pop(agent, None)
            silent = dict(message.get("silent", {}))
            look.silent |= {str(rank): str(why) for rank, why in silent.items()}
            self._conclude(number)
        self._go_on(agent)

    def _conclude(self, number: int) -> None:
        look = self._looks[number]
        if not look.agents:
            del self._looks[number]
            if not look.size:
                named = [f"rank {rank} {why}" for rank, why in look.silent.items()][:_MOST_NAMED]
                look.status["no_ranks"] = "; ".join([self._why_none(time.monotonic()), *named])
            if look.silent:
                look.status["silent"] = look.silent
            if look.status:
                look.reply.give(framed_status(look.status))
            look.reply.end()

    def _why_none(self, now: float) -> str:
        """Why no rank has answered."""
        members = self._membership
        if self.ending:
            return "the job is ending"
        if members.over:
            return "its ranks have begun to end"
        hosts = ", ".join(f"{h.name}:{h.slots}" for h in members.hosts.values() if h.here)
        there = f"{members.shortage()}; hosts: {hosts or 'none'}"
        if (lacks := self._shortage()) is not None:
            return (
                f"it has waited for ranks for {now - lacks.since:.0f} s, and gives up in "
                f"{max(lacks.until - now, 0):.0f} s (--elastic-timeout): {there}"
            )
        if self._ranks():
            return f"none of its {len(members.members())} ranks answers; hosts: {hosts}"
        return f"its ranks come together: {there}"
