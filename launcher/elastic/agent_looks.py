"""An agent's part in looks at its job: it asks the ranks of its host, and is asked itself.

Its loop waits for nobody. What is asked at its own socket goes to the coordinator: if ranks of its
host listened, whoever asks would have found them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from horoacc.launcher.elastic.channel import Message
from horoacc.launcher.look.window import Reply, open_window
from horoacc.monitor.door import AGENT, doors, is_users, short

if TYPE_CHECKING:
    from horoacc.launcher.supervise import Supervisor

_CHUNK = 1 << 16
_ANSWER_BYTES = 12 << 20  # of a rank: a message of the channel holds no more than 16 MiB
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
        self._replies: dict[int, Reply] = {}  # of visitors, the oldest first
        self._asked = 0
        self._look = 0  # the coordinator's present question,
        self._links: dict[socket.socket, bytearray] = {}  # and what its ranks have answered
        self._due = math.inf
        loop.timers.append(self._on_time)
        loop.closing.callback(self._close)
        open_window(loop, self._job, AGENT, os.environ, self._hand_on)

    def take(self, message: Message) -> None:
        """Takes what the coordinator says: a question to ranks, or an answer to a visitor's."""
        number = int(message["look"])
        if message["kind"] == "ask":
            self._close()
            self._look, self._due = number, time.monotonic() + float(message["seconds"])
            self._ask(set(message["ranks"]), f"{message['question']}\n".encode())
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
            self._replies.pop(next(iter(self._replies))).end()
        text = question.decode(errors="replace")
        self._tell({"kind": "look", "look": self._asked, "question": text})

    def _ask(self, ranks: set[int], question: bytes) -> None:
        with contextlib.suppress(OSError):  # the folder is not this user's
            for door in doors():
                if door.job == self._job and door.rank in ranks:
                    self._dial(str(door.path), question)
        if not self._links:
            self._conclude()

    def _dial(self, path: str, question: bytes) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.setblocking(False)
        try:
            link.connect(path)
            if is_users(link) and link.send(question) == len(question):
                self._links[link] = bytearray()
                self._loop.watch(link.fileno(), functools.partial(self._hear, link))
                return
        except OSError:  # nobody listens there, or many ask
            pass
        link.close()

    def _hear(self, link: socket.socket) -> None:
        text = self._links.get(link)
        if text is None:
            return  # closed since it could be read
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
        if not part and text:
            self._tell({"kind": "told", "look": self._look, "body": bytes(text)})
        if not self._links:
            self._conclude()

    def _on_time(self, now: float) -> float:
        if now >= self._due:
            self._conclude()
        return self._due

    def _conclude(self) -> None:
        """The coordinator hears that no more comes."""
        self._close()
        self._due = math.inf
        self._tell({"kind": "told", "look": self._look})

    def _close(self) -> None:
        for link in list(self._links):
            self._drop(link)

    def _drop(self, link: socket.socket) -> None:
        del self._links[link]
        self._loop.unwatch(link.fileno())
        link.close()
