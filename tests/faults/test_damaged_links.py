"""What a network does to the connections between ranks (rows 15 and 18 to 20): a fault proxy stands
before rank 1, whose connections to rank 0 it delays, stops, resets or damages. After each error the
ranks meet again, in the same processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from gates import Fault, Passage
from linked_ranks import LinkedRanks

# Bytes in a frame: of its header, and beyond it of its payload.
CONTROL_BYTES = {"magic": 1, "kind": 5, "length": 17, "payload": 33}
DATA_BYTES = {"magic": 1, "channel": 5, "length": 29, "offset": 49, "payload": 100}
# Far more than it takes: the machine may be busy with something else.
NOTICE_SECONDS = 30.0
VARIABLES = {
    "HOROACC_ALGORITHM": "canonical",  # nothing travels with the news that it is ready
    "HOROACC_TCP_STREAMS": "4",
    "HOROACC_TCP_CHECKSUMS": "1",
    "LINKED_AGAIN": "1",
}


class Rounds:
    """A job whose ranks meet again after each error."""

    def __init__(self, linked: LinkedRanks, size: int = 2) -> None:
        linked.size = size
        self.linked = linked
        self.passage = Passage(linked.port)
        self.round = 0
        self.began = 0.0
        self.logged = 0

    def start(self, **variables: str) -> None:
        for rank in range(self.linked.size):
            address = f"127.0.0.1:{self.passage.port}" if rank == 1 else ""
            self.linked.start(rank, address, **VARIABLES | variables)

    def begin(self, phase: str = "collective") -> None:
        """Until all ranks have met and are where the phase wants them."""
        linked = self.linked
        self.round += 1
        linked.wait_for(
            lambda: all(linked.count(rank, "pid") == self.round for rank in linked.ranks), "round"
        )
        linked.await_steps(0)
        assert len(self.passage.gates) == 2 and len(self.passage.control.links) == 1
        linked.wait_for(lambda: len(self.passage.data.links) == 4, "the streams")
        if phase != "collective":
            before = {rank: linked.count(rank, "away") for rank in linked.ranks}
            away = linked.ranks if phase == "idle" else [linked.size - 1]
            linked.go.with_suffix("." + {"idle": "idle", "negotiating": "absent"}[phase]).touch()
            linked.wait_for(
                lambda: all(linked.count(rank, "away") > before[rank] for rank in away), phase
            )
        self.logged = self._logged()
        self.began = time.monotonic()

    def _logged(self) -> int:
        return sum(" error: " in line for one in self.linked.ranks.values() for line in one.err)

    def expect(self, error: str, *texts: str) -> None:
        """All ranks get the error, one of whose texts names the link and what is wrong with it."""
        linked = self.linked
        if linked.go.with_suffix(".idle").exists():  # who calls nothing hears of it as well
            linked.wait_for(lambda: self._logged() > self.logged, "the end in the log")
        for suffix in (".idle", ".absent"):
            linked.go.with_suffix(suffix).unlink(missing_ok=True)
        linked.wait_for(
            lambda: all(linked.count(rank, "error") == self.round for rank in linked.ranks), texts
        )
        told: list[dict[str, Any]] = [
            [said for said in one.said if "error" in said][-1] for one in linked.ranks.values()
        ]
        for said in told:
            assert said["at"] == "run" and said["error"] == error, told
            assert said["culprit"] in (0, 1) or "does not arrive" in texts, told
            assert said["time"] - self.began < NOTICE_SECONDS, told
        assert any(all(text in said["text"] for text in texts) for said in told), told


@pytest.fixture
def rounds(linked: LinkedRanks, request: pytest.FixtureRequest) -> Iterator[Rounds]:
    made = Rounds(linked, getattr(request, "param", 2))
    yield made
    made.passage.close()


def test_damage_is_an_error_that_names_the_link(rounds: Rounds) -> None:
    rounds.start()
    for part, byte in CONTROL_BYTES.items():
        rounds.begin()
        rounds.passage.control.fault = Fault(flip=("to", byte))
        what = "broken header" if part == "magic" else "damaged on its way"
        rounds.expect("PeerLost", "lost the control link to rank 0", what)
    for part, byte in DATA_BYTES.items():
        rounds.begin()
        rounds.passage.data.fault = Fault(flip=("from", byte))
        what = {"magic": "broken header", "payload": "bytes of a message were damaged"}
        text = what.get(part, "the header of a frame was damaged")
        rounds.expect("PeerLost", "lost the data links to rank 1", "of 4", text)
    rounds.begin()
    rounds.linked.end()


@pytest.mark.parametrize("rounds", [2, 4], indirect=True)
def test_a_reset_ends_the_job_in_every_phase(rounds: Rounds) -> None:
    """Of the control link, and of one data stream of several: no byte is lost silently."""
    rounds.start()
    for phase in ("collective", "negotiating", "idle"):
        rounds.begin(phase)
        rounds.passage.control.reset(0)
        rounds.expect("PeerLost", "lost the control link to rank")
        rounds.begin(phase)
        rounds.passage.data.reset(3 if phase == "idle" else 0)
        rounds.expect("PeerLost", "lost the data links to rank", "of 4")
    # While they leave: that may be noticed or not, but holds up nobody.
    rounds.begin()
    rounds.linked.go.touch()
    rounds.passage.control.reset(0)
    for one in rounds.linked.ranks.values():
        assert one.process.wait(NOTICE_SECONDS) in (0, 9)
    rounds.linked.job.expect_nothing_left()


def test_delay_and_stalls_are_no_deaths(rounds: Rounds) -> None:
    rounds.start(HOROACC_SILENCE_WARNING_SECONDS="1")
    linked = rounds.linked
    rounds.begin()
    for gate in rounds.passage.gates:
        gate.fault = Fault(delay=0.05, jitter=0.02)
    linked.await_steps(3)
    for gate in rounds.passage.gates:
        gate.fault = Fault(stalled=("to", "from"))

    def told() -> bool:
        silent = "has given no sign of life for"
        return all(any(silent in line for line in one.warnings()) for one in linked.ranks.values())

    linked.wait_for(told, "the warnings")
    for gate in rounds.passage.gates:
        gate.fault = Fault()
    linked.await_steps(20)
    linked.end()


def test_data_that_never_come_are_told_of(rounds: Rounds) -> None:
    """Both ranks live and have submitted the tensor; what one sends is taken, and goes nowhere."""
    rounds.start(HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_STALL_SHUTDOWN_TIME_SECONDS="4")
    rounds.begin()
    rounds.passage.data.fault = Fault(stalled=("to",))
    text = "was submitted by all ranks, but nothing of it has gone on here"
    rounds.expect("Timeout", text, "does not arrive")
    told = [line for one in rounds.linked.ranks.values() for line in one.warnings()]
    assert any(text in line for line in told), told
    rounds.begin()
    rounds.linked.end()


def test_a_way_that_carries_nothing_ends_both_sides(rounds: Rounds) -> None:
    """Nothing is lost and nothing closed, as if something between had stopped: heartbeats tell."""
    rounds.start(HOROACC_HANG_LIMIT_SECONDS="3", HOROACC_SILENCE_WARNING_SECONDS="0")
    for phase, ways in (("collective", ("to",)), ("idle", ("to", "from"))):
        rounds.begin(phase)
        for gate in rounds.passage.gates:
            gate.fault = Fault(stalled=ways)
        rounds.expect("Timeout", "has given no sign of life for")
    rounds.begin()
    rounds.linked.end()
