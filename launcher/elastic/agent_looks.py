"""An agent's part in looks at its job: it asks the ranks of its host, and is asked itself.

Its loop waits for no rank and no client. Of the ranks' answers it sends a part once the
coordinator has taken the one before, so that a slow connection does not keep it from its workers'
pipes. What is asked at its own socket goes to the coordinator: if ranks of its host listened,
whoever asks would have found them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from horoacc.launcher.elastic.channel import Message
from horoacc.launcher.look.jobs import silence
from horoacc.launcher.look.look_server import (
    BUSY,
    PART,
    Reply,
    framed_status,
    is_whole,
    serve_looks,
)
from horoacc.monitor.door import AGENT, Door, doors, is_users, short

if TYPE_CHECKING:
    from horoacc.launcher.supervise import Supervisor

_CHUNK = 1 << 16
_ANSWER_BYTES = 12 << 20  # of a rank
_MOST_LOOKS = 4


class AgentLooks:
    """The looks at one job in which an agent takes part."""

    def __init__(self, loop: Supervisor, job: str, tell: Callable[[Message], None]) -> None:
        """Listens.

        Args:
            loop: The agent's.
            job: The job's name: the coordinator's address.
            tell: Sends a message to the coordinator.
        """
        self._loop = loop
        self._job = short(job)
        self._tell = tell
        self._replies: dict[int, Reply] = {}  # of clients, the oldest first
        self._asked = 0
        self._look = 0  # the coordinator's present question,
        self._links: dict[socket.socket, tuple[Door, bytearray]] = {}  # what comes of its ranks,
        self._answers: deque[bytearray] = deque()  # and what is to go to the coordinator,
        self._goes = False  # of which it has not taken a part that was sent
        self._silent: dict[int, str] = {}  # why ranks have answered nothing
        self._over = True
        self._due = math.inf
        loop.timers.append(self._on_time)
        loop.closing.callback(self._close)
        serve_looks(loop, self._job, AGENT, os.environ, self._hand_on)

    def take(self, message: Message) -> None:
        """Takes what the coordinator says: a question to ranks, that it has taken a part of the
        answers, or an answer to a client's question.
        """
        number = int(message["look"])
        if message["kind"] == "ask":
            self._close()
            self._answers.clear()
            self._silent.clear()
            self._goes = self._over = False
            self._look, self._due = number, time.monotonic() + float(message["seconds"])
            self._ask(set(message["ranks"]), f"{message['question']}\n".encode())
        elif message["kind"] == "more":
            self._goes = False
            if not message["wanted"]:
                self._answers.clear()
            self._go_on()
        elif (reply := self._replies.get(number)) is not None:
            reply.give(message.get("body", b""))
            if message["end"]:
                del self._replies[number]
                reply.end()
            else:
                self._tell({"kind": "taken", "look": number})

    def _hand_on(self, question: bytes, reply: Reply) -> None:
        self._asked += 1
        self._replies[self._asked] = reply
        while len(self._replies) > _MOST_LOOKS:  # the coordinator has forgotten the oldest, maybe
            oldest = self._replies.pop(next(iter(self._replies)))
            oldest.give(framed_status(BUSY))
            oldest.end()
        text = question.decode(errors="replace")
        self._tell({"kind": "look", "look": self._asked, "question": text})

    def _ask(self, ranks: set[int], question: bytes) -> None:
        with contextlib.suppress(OSError):  # the folder is not this user's
            for door in doors():
                if door.job == self._job and door.rank in ranks:
                    self._dial(door, question)
        self._go_on()

    def _dial(self, door: Door, question: bytes) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            link.connect(str(door.path))
            if is_users(link) and link.send(question) == len(question):
                self._links[link] = door, bytearray()
                self._loop.watch(link.fileno(), functools.partial(self._hear, link))
                return
        except OSError:  # nobody listens there, or many ask
            pass
        self._silent[door.rank] = silence(door.pid)
        link.close()

    def _hear(self, link: socket.socket) -> None:
        if link not in self._links:
            return  # closed since it could be read
        door, text = self._links[link]
        try:
            part = link.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        text += part
        if part and len(text) <= _ANSWER_BYTES:
            return
        self._drop(link)
        if not part and is_whole(text):  # a part of one would spoil those of other ranks
            self._answers.append(text)
        else:
            self._silent[door.rank] = silence(door.pid)
        self._go_on()

    def _on_time(self, now: float) -> float:
        if now >= self._due:
            self._due = math.inf
            self._silent |= {door.rank: silence(door.pid) for door, _ in self._links.values()}
            self._close()
            self._go_on()
        return self._due

    def _go_on(self) -> None:
        """The coordinator gets the next part, or hears that no more comes."""
        if self._goes or self._over:
            return
        if self._answers:
            answer = self._answers[0]
            part = bytes(answer[:PART])
            del answer[:PART]
            if not answer:
                self._answers.popleft()
            self._goes = True
            self._tell({"kind": "told", "look": self._look, "body": part, "more": bool(answer)})
        elif not self._links:
            self._over, self._due = True, math.inf
            self._tell({"kind": "told", "look": self._look, "silent": self._silent})

    def _close(self) -> None:
        for link in list(self._links):
            self._drop(link)

    def _drop(self, link: socket.socket) -> None:
        del self._links[link]
        self._loop.unwatch(link.fileno())
        link.close()
