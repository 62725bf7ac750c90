"""Messages between coordinator and workers: what a stranger, or someone on the way, can do."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import pytest

from horoacc.launcher.elastic.channel import Channel, ChannelError, Message, Side

SECRET = "ab" * 32
Ends = tuple[Channel, Channel]


def drain(channel: Channel) -> list[Message]:
    found, quiet = [], 0
    while quiet < 3:  # a frame may come in parts
        more = channel.wait(0.05)
        found += more
        quiet = 0 if more else quiet + 1
    return found


def pair(first: str = SECRET, second: str = SECRET, side: Side = "member") -> Ends:
    a, b = socket.socketpair()
    return Channel(a, first, "coordinator", 1.0), Channel(b, second, side, 1.0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = pair()
    yield made
    for end in made:
        end.close()


def test_messages_arrive_whole_and_in_order_both_ways(ends: Ends) -> None:
    coordinator, member = ends
    sent = [
        {"kind": "output", "worker": n, "text": "ü" * n, "body": random.randbytes(n * 97)}
        for n in range(40)
    ]
    for n, message in enumerate(sent):
        member.send(message)  # the first before the other end's random bytes are here
        coordinator.send({"kind": "seat", "number": n})
        if n == 0:
            assert member.receive() == []
    expected = [{k: v for k, v in message.items() if v != b""} for message in sent]
    assert drain(coordinator) == expected
    assert [message["number"] for message in drain(member)] == list(range(40))
    assert coordinator.proved and member.proved


@pytest.mark.parametrize("who", [("cd" * 32, SECRET), (SECRET, "")])
def test_an_end_without_the_secret_is_refused(who: tuple[str, str]) -> None:
    coordinator, member = pair(*who)
    member.receive()
    member.send({"kind": "worker", "worker": 0})
    with pytest.raises(ChannelError, match="does not know the job's secret"):
        drain(coordinator)
    assert not coordinator.proved


def test_bytes_that_are_sent_back_are_refused() -> None:
    a, b = socket.socketpair()
    with a, b:
        channel = Channel(a, SECRET, "coordinator")
        b.sendall(b.recv(1000))
        with pytest.raises(ChannelError, match="own bytes back"):
            channel.receive()


class Between:
    """Someone on the way between two ends, who can change what passes."""

    def __init__(self) -> None:
        a, self.left = socket.socketpair()
        b, self.right = socket.socketpair()
        self.coordinator = Channel(a, SECRET, "coordinator")
        self.member = Channel(b, SECRET, "member")
        self.left.sendall(self.right.recv(1000))
        self.right.sendall(self.left.recv(1000))
        self.coordinator.receive()
        self.member.receive()

    def frame(self, **message: object) -> bytes:
        self.member.send(message)
        return self.right.recv(100000)

    def close(self) -> None:
        for link in (self.left, self.right, self.coordinator, self.member):
            link.close()


@pytest.fixture
def between() -> Iterator[Between]:
    made = Between()
    yield made
    made.close()


@pytest.mark.parametrize("do", ["change", "repeat", "leave out", "swap", "reflect", "replay"])
def test_what_someone_on_the_way_does_is_noticed(between: Between, do: str) -> None:
    frames = [between.frame(kind="checks", count=n) for n in range(2)]
    if do == "replay":  # what another connection with the same secret carried
        other = Between()
        frames = [other.frame(kind="checks", count=0)]
        other.close()
    elif do == "reflect":
        between.right.sendall(frames[0])
        with pytest.raises(ChannelError, match="changed, repeated or left out"):
            between.member.receive()
        return
    if do == "change":
        at = random.randrange(8, len(frames[0]))
        frames[0] = frames[0][:at] + bytes([frames[0][at] ^ 1]) + frames[0][at + 1 :]
    frames = {
        "repeat": [frames[0], frames[0]], "leave out": frames[1:], "swap": frames[::-1]
    }.get(do, frames)  # fmt: skip
    between.left.sendall(b"".join(frames))
    with pytest.raises(ChannelError, match="changed, repeated or left out"):
        drain(between.coordinator)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_ends_the_connection_or_waits_for_more(between: Between, seed: int) -> None:
    draw = random.Random(seed)
    between.left.sendall(draw.randbytes(draw.randrange(1, 5000)))
    with contextlib.suppress(ChannelError):
        assert drain(between.coordinator) == []
    assert not between.coordinator.proved


def test_a_long_first_message_is_refused() -> None:
    coordinator, member = pair()
    member.receive()
    member.send({"kind": "worker", "text": "x" * 5000})
    with pytest.raises(ChannelError, match="too long"):
        drain(coordinator)


def test_an_end_that_does_not_read_is_not_waited_for(ends: Ends) -> None:
    coordinator, member = ends
    member.receive()
    coordinator.receive()
    with pytest.raises(ChannelError, match="does not read"):
        for _ in range(100):
            coordinator.send({"kind": "seat", "body": bytes(1 << 20)})


def test_the_end_of_a_connection_is_an_error(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(ChannelError, match=r"closed|reset"):
        ends[0].wait(1)
        ends[0].wait(1)
