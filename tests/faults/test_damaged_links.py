"""Network faults on the connections between ranks (rows 15 and 18 to 20): a fault proxy before rank
1 delays, stops, resets or damages its connections to rank 0. After each error the ranks join again,
in the same processes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gates import Fault, Passage
from holdups import Holdups
from launcher_jobs import Job
from linked_ranks import PHASES, LinkedRanks

# Bytes in a frame: of its header, of the header's tag, if frames are sealed, and of its payload.
CONTROL_BYTES = {"magic": 1, "kind": 5, "length": 17, "tag": 33, "payload": 49}
DATA_BYTES = {"magic": 1, "channel": 5, "length": 29, "offset": 49, "tag": 65, "payload": 100}
# The fault matrix's bounds: from a reset, from a damaged byte, and beyond a limit that is set, to
# the error. Where nothing else travels a byte is damaged with the next sign of life, one a second.
RESET_SECONDS, DAMAGE_SECONDS, LATE_SECONDS, BEAT_SECONDS = 2.0, 1.0, 2.0, 1.0
HANG, STALL = 3, 4
VARIABLES = {
    "HOROACC_ALGORITHM": "canonical",  # nothing travels with the news that it is ready
    "HOROACC_TCP_STREAMS": "4",
    "HOROACC_TCP_CHECKSUMS": "1",
    "LINKED_AGAIN": "1",
}
SILENT, AGAIN = "has given no sign of life for", "gives signs of life again"


class Rounds:
    """A job whose ranks meet again after each error."""

    def __init__(self, linked: LinkedRanks, holdups: Holdups, size: int = 2) -> None:
        linked.size = size
        self.linked = linked
        self.holdups = holdups
        self.passage = Passage(linked.port, linked.secret)
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
        linked.enter(phase)
        self.logged = linked.logged(" error: ")
        self.began = time.monotonic()

    def befall(self, fault: Fault) -> None:
        """On all ways between rank 1 and the others."""
        self.began = time.monotonic()
        for gate in self.passage.gates:
            gate.fault = fault

    def await_told(self, word: str, times: int) -> None:
        """Until both ends of the connections have warned so often."""
        ends = [self.linked.ranks[rank] for rank in (0, 1)]
        self.linked.wait_for(
            lambda: all(sum(word in line for line in one.warnings()) >= times for one in ends),
            word,
        )

    def expect(self, error: str, *texts: str, within: float) -> None:
        """All ranks get the error in time, by the clock that all processes of the machine share;
        one of their texts names the link and its damage."""
        linked = self.linked
        if linked.go.with_suffix(".idle").exists():  # a rank that calls nothing gets it as well
            linked.wait_for(lambda: linked.logged(" error: ") > self.logged, "the end in the log")
        linked.resume()
        linked.wait_for(
            lambda: all(linked.count(rank, "error") == self.round for rank in linked.ranks), texts
        )
        told: list[dict[str, Any]] = [
            [said for said in one.said if "error" in said][-1] for one in linked.ranks.values()
        ]
        for said in told:
            assert said["at"] == "run" and said["error"] == error, told
            assert said["culprit"] in (0, 1) or "does not arrive" in texts, told
            if named := re.search(r"lost the (control|data) links? to rank (\d+)", said["text"]):
                assert said["culprit"] == int(named[2]), told
            if said["culprit"] is not None:
                assert said["host"] and f"rank {said['culprit']} on host" in said["hint"], told
                assert error != "PeerLost" or "the network between" in said["hint"], told
            assert said["time"] - self.began < self.holdups.allow(within), told
        assert any(all(text in said["text"] for text in texts) for said in told), told


@pytest.fixture
def rounds(linked: LinkedRanks, request: pytest.FixtureRequest) -> Iterator[Rounds]:
    with Holdups() as holdups:
        made = Rounds(linked, holdups, getattr(request, "param", 2))
        yield made
        made.passage.close()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[Rounds]]:
    """Jobs of two and of four ranks, which wait side by side."""
    made = []
    with Holdups() as holdups:
        for size in (2, 4):
            (folder := tmp_path / f"{size} ranks").mkdir()
            made.append(Rounds(LinkedRanks(Job(), folder), holdups, size))
        yield made
    for one in made:
        one.passage.close()
        one.linked.kill()


@pytest.mark.parametrize(
    ("rounds", "mac"),
    [(2, "auto"), (4, "auto"), (8, "auto"), (2, "hmac-sha256"), (2, "none")],
    indirect=["rounds"],
)
def test_damage_is_an_error_that_names_the_link(rounds: Rounds, mac: str) -> None:
    rounds.start(HOROACC_LINK_MAC=mac)
    magic = "broken header" if mac == "none" else "damaged on its way, or forged"
    for part, byte in CONTROL_BYTES.items():
        rounds.begin()
        rounds.passage.control.fault = Fault(flip=("to", byte))
        what = magic if part == "magic" else "damaged on its way"
        lost = "lost the control link to rank 0"
        rounds.expect("PeerLost", lost, what, within=DAMAGE_SECONDS)
    for part, byte in DATA_BYTES.items():
        rounds.begin()
        rounds.passage.data.fault = Fault(flip=("from", byte))
        payload = part == "payload" or (part == "tag" and mac == "none")
        text = "bytes of a message were" if payload else "the header of a frame was damaged"
        text = magic if part == "magic" else text
        lost = "lost the data links to rank 1"
        rounds.expect("PeerLost", lost, text, within=DAMAGE_SECONDS)
    # Of ranks that submit nothing the signs of life are damaged.
    for phase, way in (("negotiating", "to"), ("idle", "from")):
        rounds.begin(phase)
        rounds.passage.control.fault = Fault(flip=(way, CONTROL_BYTES["kind"]))
        lost, within = "lost the control link to rank", BEAT_SECONDS + DAMAGE_SECONDS
        rounds.expect("PeerLost", lost, "damaged on its way", within=within)
    # While they leave: that may be noticed or not, but holds up nobody.
    rounds.begin("idle")
    rounds.passage.control.fault = Fault(flip=("to", CONTROL_BYTES["length"]))
    rounds.linked.part()
    rounds.linked.end(0, 9)


@pytest.mark.parametrize("rounds", [2, 4, 8], indirect=True)
def test_a_reset_ends_the_job_in_every_phase(rounds: Rounds) -> None:
    """Of the control link, and of one data stream of several: no byte is lost silently."""
    rounds.start()
    for phase in ("collective", "negotiating", "idle"):
        rounds.begin(phase)
        rounds.passage.control.reset(0)
        rounds.expect("PeerLost", "lost the control link to rank", within=RESET_SECONDS)
        rounds.begin(phase)
        rounds.passage.data.reset(3 if phase == "idle" else 0)
        rounds.expect("PeerLost", "lost the data links to rank", within=RESET_SECONDS)
    # While they leave: that may be noticed or not, but holds up nobody.
    rounds.begin("idle")
    rounds.passage.control.reset(0)
    rounds.linked.part()
    rounds.linked.end(0, 9)


def test_delay_and_stalls_are_no_deaths(both: list[Rounds]) -> None:
    for rounds in both:
        rounds.start(HOROACC_HEARTBEAT_WARNING_SECONDS="1")
    for rounds in both:
        rounds.begin()
        rounds.befall(Fault(delay=0.05, jitter=0.02))
        rounds.linked.await_steps(3)
    for times, phase in enumerate(PHASES, start=1):
        for rounds in both:
            rounds.linked.enter(phase)
            rounds.befall(Fault(stalled=("to", "from")))
        for rounds in both:
            rounds.await_told(SILENT, times)
            rounds.befall(Fault())
            rounds.await_told(AGAIN, times)
            rounds.linked.resume()
            rounds.linked.await_steps(20)
    for rounds in both:
        rounds.linked.enter("idle")
        rounds.befall(Fault(stalled=("to", "from")))
        rounds.linked.part()
        rounds.befall(Fault())
        rounds.linked.end()


def test_data_that_never_come_are_told_of(rounds: Rounds) -> None:
    """Both ranks live and have submitted the tensor; the bytes of one are taken and lost."""
    rounds.start(
        HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_STALL_SHUTDOWN_TIME_SECONDS=str(STALL)
    )
    rounds.begin()
    rounds.passage.data.fault = Fault(stalled=("to",))
    text = "was submitted by all ranks, but nothing of it has gone on here"
    rounds.expect("Timeout", text, "does not arrive", within=STALL + LATE_SECONDS)
    told = [line for one in rounds.linked.ranks.values() for line in one.warnings()]
    assert any(text in line for line in told), told
    rounds.begin()
    rounds.linked.end()


def test_a_way_that_carries_nothing_ends_both_sides(both: list[Rounds]) -> None:
    """Nothing is lost and nothing closed, as if something between had stopped: heartbeats tell."""
    for rounds in both:
        rounds.start(
            HOROACC_HEARTBEAT_TIMEOUT_SECONDS=str(HANG), HOROACC_HEARTBEAT_WARNING_SECONDS="0"
        )
    for phase, ways in zip(PHASES, (("to",), ("from",), ("to", "from")), strict=True):
        for rounds in both:
            rounds.begin(phase)
        for rounds in both:
            rounds.befall(Fault(stalled=ways))
        for rounds in both:
            rounds.expect("Timeout", SILENT, within=HANG + LATE_SECONDS)
    # A rank that leaves waits for no answer.
    for rounds in both:
        rounds.begin("idle")
        rounds.befall(Fault(stalled=("to", "from")))
        rounds.linked.part()
        rounds.linked.end(0, 9)
