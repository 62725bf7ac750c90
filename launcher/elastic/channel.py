"""Authenticated messages between the coordinator of an elastic job, its agents and its ranks.

Both ends first send 32 random bytes. Each direction then has a key of its own, made of the job's
secret and of both ends' bytes; a frame carries an HMAC over its number in the direction and its
content. So a frame that was forged, changed, repeated, left out or recorded in another connection
is refused, and so is an end that does not know the secret. Frames are not encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from typing import Any, Literal

Side = Literal["coordinator", "member"]
Message = dict[str, Any]
"""JSON's types, with a string `kind`; `body` may hold bytes."""

_NONCE = 32
_MAC = 32
_LENGTHS = struct.Struct(">II")  # of the JSON text and of the body
_LONGEST = 16 << 20
# Until an end has proved that it knows the secret.
_LONGEST_FIRST = 4 << 10
_CHUNK = 1 << 16


class ChannelError(OSError):
    """The connection cannot be used any more; the text says why."""

    @property
    def host_gone(self) -> bool:
        """Whether the other host's kernel did not answer."""
        return self.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Channel:
    """One end of a connection. One thread may receive while others send."""

    def __init__(
        self,
        link: socket.socket,
        secret: str,
        side: Side,
        seconds: float | None = None,
        silence: float = 0.0,
    ) -> None:
        """Sends this end's random bytes.

        Args:
            link: A connected socket, which this object owns from now on.
            secret: The job's, in hexadecimal digits.
            side: Which end this is.
            seconds: How long a message may take to be sent; None: any time.
            silence: After how long the other host is gone, if its kernel does not answer; 0: never.
        """
        self.link = link
        self._secret = secret.encode()
        self._side = side
        self._seconds = seconds
        self._nonce = os.urandom(_NONCE)
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._received = 0
        self._early: list[Message] = []
        self._lock = threading.RLock()  # of sending
        self._buffer = bytearray()
        link.setblocking(False)
        with contextlib.suppress(OSError):  # not a TCP socket
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if silence > 0:
                _probe(link, silence)
        self._write(self._nonce)

    @property
    def proved(self) -> bool:
        """Whether the other end has shown that it knows the secret."""
        return self._received > 0

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.link.fileno()

    def close(self) -> None:
        """Ends the connection."""
        self.link.close()

    def send(self, message: Message) -> None:
        """Sends a message, or keeps it until the other end's random bytes are here.

        Raises:
            ChannelError: The other end is gone, or does not read.
        """
        with self._lock:
            if self._keys is None:
                self._early.append(message)
                return
            body = message.get("body", b"")
            text = json.dumps({k: v for k, v in message.items() if k != "body"}).encode()
            content = _LENGTHS.pack(len(text), len(body)) + text + body
            self._write(content + _mac(self._keys[0], self._sent, content))
            self._sent += 1

    def receive(self) -> list[Message]:
        """Reads what is there, without waiting.

        Raises:
            ChannelError: The other end is gone, or sent something that it cannot have sent.
        """
        try:
            data = self.link.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ChannelError(error.errno, error.strerror) from None
        if not data:
            raise ChannelError("the other end closed the connection")
        self._buffer += data
        if self._keys is None:
            if len(self._buffer) < _NONCE:
                return []
            with self._lock:  # what was sent early goes before what is sent now
                self._derive(bytes(self._buffer[:_NONCE]))
                for message in self._early:
                    self.send(message)
            del self._buffer[:_NONCE]
        messages = []
        while (whole := self._next()) is not None:
            messages.append(whole)
        return messages

    def wait(self, seconds: float | None) -> list[Message]:
        """Waits for data, and gives the messages that are whole; none if the time is over."""
        _wait(self.link, select.POLLIN, seconds)
        return self.receive()

    def _derive(self, theirs: bytes) -> None:
        if theirs == self._nonce:
            raise ChannelError("the other end sent this one's own bytes back")
        first, second = self._nonce, theirs
        if self._side == "member":
            first, second = second, first
        keys = [
            hmac.digest(self._secret, f"elastic {side}".encode() + first + second, hashlib.sha256)
            for side in ("coordinator", "member")
        ]
        self._keys = (keys[0], keys[1]) if self._side == "coordinator" else (keys[1], keys[0])

    def _next(self) -> Message | None:
        assert self._keys is not None
        if len(self._buffer) < _LENGTHS.size:
            return None
        text, body = _LENGTHS.unpack_from(self._buffer)
        end = _LENGTHS.size + text + body
        if end > (_LONGEST if self.proved else _LONGEST_FIRST):
            raise ChannelError("the other end sent a message that is too long")
        if len(self._buffer) < end + _MAC:
            return None
        content = bytes(self._buffer[:end])
        mac = bytes(self._buffer[end : end + _MAC])
        if not hmac.compare_digest(mac, _mac(self._keys[1], self._received, content)):
            raise ChannelError(
                "the other end does not know the job's secret, or a message was changed, repeated "
                "or left out on the way"
            )
        del self._buffer[: end + _MAC]
        self._received += 1
        message: Message = json.loads(content[_LENGTHS.size : _LENGTHS.size + text])
        if body:
            message["body"] = content[_LENGTHS.size + text :]
        return message

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        until = None if self._seconds is None else time.monotonic() + self._seconds
        while view:
            try:
                view = view[self.link.send(view) :]
            except BlockingIOError:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise ChannelError("the other end does not read") from None
                _wait(self.link, select.POLLOUT, left)
            except OSError as error:
                raise ChannelError(str(error)) from None


def _wait(link: socket.socket, event: int, seconds: float | None) -> None:
    poll = select.poll()
    poll.register(link, event)
    poll.poll(None if seconds is None else max(0, int(seconds * 1000)))


def _probe(link: socket.socket, silence: float) -> None:
    """Has the kernel look whether the other host is there, also while nothing is sent."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    pause = max(1, int(silence / 3))
    for option, value in (
        (socket.TCP_KEEPIDLE, pause),
        (socket.TCP_KEEPINTVL, pause),
        (socket.TCP_USER_TIMEOUT, int(silence * 1000)),
    ):
        link.setsockopt(socket.IPPROTO_TCP, option, value)


def _mac(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + content, hashlib.sha256)


def dial(address: str, secret: str, seconds: float, silence: float = 0.0) -> Channel:
    """Connects a member to the coordinator.

    Args:
        address: host:port
        secret: The job's.
        seconds: How long to try.
        silence: As of `Channel`.

    Raises:
        ChannelError: The coordinator is not there.
    """
    host, _, port = address.rpartition(":")
    try:
        link = socket.create_connection((host.strip("[]"), int(port)), seconds)
    except OSError as error:
        raise ChannelError(f"the coordinator of the job at {address}: {error}") from None
    return Channel(link, secret, "member", silence=silence)
