"""Connections to a job's coordinator that prove nothing."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable

import pytest

from horoacc.launcher.elastic import door
from horoacc.launcher.elastic.channel import Channel
from horoacc.launcher.output import Printer, RankStream

SECRET = "ab" * 32


class Loop:
    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, ready)

    def unwatch(self, fd: int) -> None:
        self.selector.unregister(fd)

    def stream(self, rank: int, name: str) -> RankStream:
        return RankStream(rank, name, Printer())

    def turn(self) -> int:
        """Serves what can be read; how much that was."""
        ready = self.selector.select(0.05)
        for key, _ in ready:
            key.data()
        return len(ready)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[Loop, door.Door, list[Channel]]:
    monkeypatch.setattr(door, "_LEAST_STRANGERS", 3)
    monkeypatch.setattr(door.resource, "getrlimit", lambda _: (8, 8))
    loop, greeted = Loop(), list[Channel]()
    made = door.Door(loop, SECRET, 5.0, lambda channel, *_: greeted.append(channel))
    made.open("127.0.0.1")
    return loop, made, greeted


def dialled(made: door.Door) -> socket.socket:
    host, _, port = made.address.partition(":")
    return socket.create_connection((host, int(port)), 5)


def comes_in(loop: Loop, made: door.Door, greeted: list[Channel]) -> bool:
    member = Channel(dialled(made), SECRET, "member", 5.0)
    loop.turn()
    member.receive()
    member.send({"kind": "worker", "worker": 0})
    for _ in range(20):
        loop.turn()
        member.receive()
    member.close()
    return len(greeted) == 1


def test_the_oldest_of_too_many_go(opened: tuple[Loop, door.Door, list[Channel]]) -> None:
    loop, made, greeted = opened
    strangers = [dialled(made) for _ in range(6)]
    while loop.turn():
        pass
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.recv(1000)  # the coordinator's part of the proof
    for stranger in strangers[:3]:
        assert stranger.recv(1) == b""
    for stranger in strangers[3:]:
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
    assert comes_in(loop, made, greeted)
    made.close()


def test_no_descriptor_is_left(
    opened: tuple[Loop, door.Door, list[Channel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, made, greeted = opened
    stranger = dialled(made)
    loop.turn()

    class Short:
        def __init__(self, listener: socket.socket) -> None:
            self.fileno = listener.fileno

        def accept(self) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    listener = made._listener
    assert listener is not None
    monkeypatch.setattr(made, "_listener", Short(listener))
    waiting = dialled(made)
    assert loop.turn() == 1 and loop.turn() == 0, "it would be told of the same one all the time"
    stranger.recv(1000)
    assert stranger.recv(1) == b"", "the oldest makes room"
    monkeypatch.setattr(made, "_listener", listener)
    assert made.on_time(time.monotonic()) < time.monotonic() + 0.2
    made.on_time(time.monotonic() + 0.2)
    assert loop.turn() == 1
    assert comes_in(loop, made, greeted)
    waiting.close()
    made.close()
