"""What a network does to the connections between ranks (rows 15, 19 and 20): a fault proxy stands
between rank 0 and rank 1, whose connections to each other it delays, stops, resets or damages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from gates import Fault, Gate, Passage
from linked_ranks import LinkedRanks

# In a header of a frame: magic, what it says first, its length. Beyond it: payload.
CONTROL_BYTES = {"magic": 1, "kind": 5, "length": 17, "payload": 33}
DATA_BYTES = {"magic": 1, "channel": 5, "length": 29, "offset": 49}


@pytest.fixture
def passage(linked: LinkedRanks) -> Iterator[Passage]:
    """The way of rank 1 to the others, and theirs to it."""
    way = Passage(linked.port)
    yield way
    way.close()


def _start(linked: LinkedRanks, passage: Passage, **variables: str) -> None:
    linked.start(0, **variables)
    linked.start(1, f"127.0.0.1:{passage.port}", **variables)
    linked.await_start()
    assert len(passage.gates) == 2 and any(gate.links for gate in passage.gates)


def _expect_broken(linked: LinkedRanks, *texts: str) -> None:
    """Both ranks end with a typed error, one of which names the link and what is wrong with it."""
    errors = linked.await_errors()
    for rank, said in errors.items():
        assert said["error"] == "PeerLost" and said["culprit"] in (0, 1), (rank, said)
    known = [said["text"] for said in errors.values()]
    assert any(all(text in one for text in texts) for one in known), known
    linked.end(9)


def test_delay_and_stalls_are_no_deaths(linked: LinkedRanks, passage: Passage) -> None:
    _start(linked, passage)
    for gate in passage.gates:
        gate.fault = Fault(delay=0.05, jitter=0.02)
    linked.await_steps(3)
    for gate in passage.gates:
        gate.fault = Fault(stalled={"to", "from"})
    time.sleep(2)
    for gate in passage.gates:
        gate.fault = Fault()
    linked.await_steps(20)
    linked.end()


@pytest.mark.parametrize("streams", ["1", "4"])
def test_a_reset_of_one_stream_of_several(
    linked: LinkedRanks, passage: Passage, streams: str
) -> None:
    """No byte is lost silently: a job is over with one of its streams."""
    _start(linked, passage, HOROACC_TCP_STREAMS=streams)
    linked.wait_for(lambda: len(passage.data.links) == int(streams), "the streams")
    passage.data.reset(int(streams) - 1)
    _expect_broken(linked, "lost the data links to rank", f"of {streams}")


def test_a_reset_of_the_control_link(linked: LinkedRanks, passage: Passage) -> None:
    _start(linked, passage)
    passage.control.reset(0)
    _expect_broken(linked, "lost the control link to rank")


@pytest.mark.parametrize("part", list(CONTROL_BYTES))
def test_damage_on_a_control_link(linked: LinkedRanks, passage: Passage, part: str) -> None:
    _start(linked, passage)
    _damage(passage.control, "to", CONTROL_BYTES[part])
    what = "broken header" if part == "magic" else "damaged on its way"
    _expect_broken(linked, "lost the control link to rank 0", what)


@pytest.mark.parametrize("part", list(DATA_BYTES))
def test_damage_of_a_header_of_data(linked: LinkedRanks, passage: Passage, part: str) -> None:
    _start(linked, passage)
    _damage(passage.data, "from", DATA_BYTES[part])
    what = "broken header" if part == "magic" else "the header of a frame was damaged"
    _expect_broken(linked, "lost the data links to rank 1", "connection 1 of 1", what)


def test_damage_of_payload_with_checksums(linked: LinkedRanks, passage: Passage) -> None:
    _start(linked, passage, HOROACC_TCP_CHECKSUMS="1")
    _damage(passage.data, "to", 100)
    _expect_broken(linked, "lost the data links to rank 0", "bytes of a message were damaged")


def _damage(gate: Gate, way: str, byte: int) -> None:
    gate.fault = Fault(flip=(way, byte))
    assert gate.flipped.wait(60)
