"""Where agents and workers of an elastic job come in: a socket, and proofs of the secret."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable
from typing import Protocol

from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.output import RankStream
from horoacc.monitor.door import SHORT, SHORT_SECONDS

# A connection that has not proved the secret by then is closed.
_PROOF_SECONDS = 10.0
# A quarter of this process's descriptors may belong to connections without a proof, or so many.
_LEAST_STRANGERS = 64
# What the coordinator sends is short, so that an end which does not take it is stuck.
_SEND_SECONDS = 5.0


class Loop(Protocol):
    """The supervisor, as far as the coordinator needs it."""

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Calls `ready` whenever `fd` can be read."""

    def unwatch(self, fd: int) -> None:
        """Ends `watch`."""

    def stream(self, rank: int, name: str) -> RankStream:
        """A new stream of a rank's output."""


class Door:
    """Lets those in that know the job's secret.

    Attributes:
        address: host:port, once it listens.
    """

    def __init__(
        self,
        loop: Loop,
        secret: str,
        silence: float,
        greet: Callable[[Channel, Message, list[Message]], None],
    ) -> None:
        """Makes a door that is shut.

        Args:
            loop: Calls back when something can be read.
            secret: The job's, in hexadecimal digits.
            silence: As of `Channel`.
            greet: Takes a proved connection, its first message, and those that came with it.
        """
        self.address = ""
        self._loop = loop
        self._secret = secret
        self._silence = silence
        self._greet = greet
        self._listener: socket.socket | None = None
        self._strangers: dict[Channel, float] = {}  # when they came, the oldest first
        self._most = max(_LEAST_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._watches_again = float("inf")

    def open(self, host: str, family: socket.AddressFamily = socket.AF_INET, port: int = 0) -> None:
        """Listens at an address of this host; at any free port, if none is given."""
        self._listener = socket.create_server((host, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Ends the listening, and what has not proved itself."""
        for channel in list(self._strangers):
            self._turn_away(channel)
        if self._listener is not None:
            if self._watches_again == float("inf"):
                self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def on_time(self, now: float) -> float:
        """Turns those away that took too long; says when it wants to look again."""
        for channel, since in list(self._strangers.items()):
            if now >= since + _PROOF_SECONDS:
                self._turn_away(channel)
        if self._listener is not None and now >= self._watches_again:
            self._watches_again = float("inf")
            self._loop.watch(self._listener.fileno(), self._accept)
        oldest = min(self._strangers.values(), default=float("inf"))
        return min(oldest + _PROOF_SECONDS, self._watches_again)

    def _accept(self) -> None:
        """Takes a connection; too many without a proof must not keep agents and workers out."""
        assert self._listener is not None
        try:
            link, _ = self._listener.accept()
        except OSError as error:
            if error.errno in SHORT:
                if self._strangers:
                    self._turn_away(next(iter(self._strangers)))
                self._loop.unwatch(self._listener.fileno())
                self._watches_again = time.monotonic() + SHORT_SECONDS
            return
        if len(self._strangers) >= self._most:
            self._turn_away(next(iter(self._strangers)))
        with contextlib.suppress(OSError):
            channel = Channel(link, self._secret, "coordinator", _SEND_SECONDS, self._silence)
            self._strangers[channel] = time.monotonic()
            self._loop.watch(channel.fileno(), lambda: self._hear(channel))

    def _hear(self, channel: Channel) -> None:
        if channel not in self._strangers:
            return  # turned away since it could be read
        try:
            messages = channel.receive()
        except (ChannelError, ValueError):
            # It does not know the secret, as a worker of an earlier job does not: no answer.
            self._turn_away(channel)
            return
        if messages:
            del self._strangers[channel]
            self._loop.unwatch(channel.fileno())
            self._greet(channel, messages[0], messages[1:])

    def _turn_away(self, channel: Channel) -> None:
        del self._strangers[channel]
        self._loop.unwatch(channel.fileno())
        channel.close()


def tell(channel: Channel | None, message: Message) -> bool:
    """Sends a message, if there is somebody; says whether it was sent.

    The reader of the connection notices its end.
    """
    if channel is None:
        return False
    try:
        channel.send(message)
    except ChannelError:
        return False
    return True


def drop(loop: Loop, channel: Channel) -> None:
    """Ends a connection that is watched."""
    if channel.fileno() >= 0:
        loop.unwatch(channel.fileno())
        channel.close()
