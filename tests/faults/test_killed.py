"""A rank that ends without a word: the others are told who, where, in which call (rows 1 to 4)."""

from __future__ import annotations

import random
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from faulted_jobs import FaultedJob, expect_told
from kill_soak import kill_once

HOSTS = {"HOROACC_PARTED_HOSTS": "1+1"}
FOUR_HOSTS = {"HOROACC_PARTED_HOSTS": "2+2"}
TCP = {"HOROACC_CONTROL": "tcp"}


@pytest.mark.parametrize(
    ("size", "phase", "victim", "variables"),
    [
        (2, "idle", 1, {}),
        (4, "negotiating", 0, {}),
        (4, "collective", 3, {}),
        (2, "collective", 0, HOSTS),
        (4, "negotiating", 2, FOUR_HOSTS),
        (2, "idle", 0, TCP),
    ],
)
def test_kill(
    faulted: FaultedJob, tmp_path: Path, size: int, phase: str, victim: int,
    variables: dict[str, str],
) -> None:  # fmt: skip
    faulted.start(size, phase, victim, tmp_path / "go", **variables)
    faulted.await_phase()
    killed = time.monotonic_ns()
    faulted.signal(victim, signal.SIGKILL)
    if phase == "idle":
        (tmp_path / "go").touch()
    assert faulted.end() == 128 + signal.SIGKILL
    told = expect_told(faulted, size, victim, killed)
    for error in told:
        assert error["error"] == "PeerLost", error
        assert re.search(rf"\brank {victim}\b", error["text"]), error
        assert error["host"] == socket.gethostname(), error
        assert f"rank {victim} on host" in error["hint"], error
        if phase != "collective":
            assert error["tensor"] == "allreduce.late", error
        else:
            assert error["tensor"].startswith("allreduce."), error


@pytest.mark.parametrize("hosts", ["", "2+2"])
def test_a_kill_at_a_random_moment(tmp_path: Path, hosts: str) -> None:
    """One of those of which kill_soak.py does a hundred."""
    chance = random.Random()
    kill_once(
        4, chance.random(), chance.randrange(4), tmp_path, HOROACC_PARTED_HOSTS=hosts
    )  # fmt: skip


@pytest.mark.parametrize(("size", "variables"), [(2, {}), (4, FOUR_HOSTS)])
def test_kill_while_the_others_leave(
    faulted: FaultedJob, tmp_path: Path, size: int, variables: dict[str, str]
) -> None:
    """They need nothing of it any more, and must not wait for it."""
    faulted.start(size, "shutdown", 1, tmp_path / "go", **variables)
    faulted.await_phase()
    faulted.signal(1, signal.SIGKILL)
    assert faulted.end() == 128 + signal.SIGKILL
    assert sorted(faulted.told) == sorted({*range(size)} - {1})
    for told in faulted.told.values():
        assert told.get("error") in (None, "PeerLost"), told


# Where in the core a rank ends, and how: what it holds there must not hold up the others.
@pytest.mark.parametrize(
    ("size", "order", "code"),
    [
        (2, "submit:1:40:exit", 70),
        (4, "decide:0:9:abort", 128 + signal.SIGABRT),
        (2, "advance:0:40:kill", 128 + signal.SIGKILL),
        (4, "finish:2:9:abort", 128 + signal.SIGABRT),
    ],
)
def test_an_end_at_any_place(
    faulted: FaultedJob, tmp_path: Path, size: int, order: str, code: int
) -> None:
    victim = int(order.split(":")[1])
    faulted.start(size, "collective", victim, tmp_path / "go", HOROACC_FAULT=order)
    assert faulted.end() == code
    for error in expect_told(faulted, size, victim, None):
        assert error["error"] == "PeerLost", error


@pytest.mark.parametrize(
    ("size", "order", "variables"),
    [
        (4, "send:1:30:exit", TCP),
        (4, "receive:1:30:kill", FOUR_HOSTS),
        (2, "decide:0:9:exit", HOSTS),
    ],
)
def test_an_end_at_a_link(
    faulted: FaultedJob, tmp_path: Path, size: int, order: str, variables: dict[str, str]
) -> None:
    victim = int(order.split(":")[1])
    faulted.start(size, "collective", victim, tmp_path / "go", HOROACC_FAULT=order, **variables)
    assert faulted.end() in (70, 128 + signal.SIGKILL)
    for error in expect_told(faulted, size, victim, None):
        assert error["error"] == "PeerLost", error


def test_an_ordered_error_ends_the_job_everywhere(faulted: FaultedJob, tmp_path: Path) -> None:
    faulted.start(2, "collective", 1, tmp_path / "go", HOROACC_FAULT="begin:1:9:error")
    assert faulted.end() == 9
    assert sorted(faulted.told) == [0, 1]
    for told in faulted.told.values():
        assert (told["error"], told["culprit"]) == ("SystemFailure", 1), told
        assert "an error was ordered here" in told["text"], told


@pytest.mark.parametrize(
    ("order", "code"), [("bootstrap:1:1:exit", 70), ("bootstrap:0:2:exit", 70)]
)
def test_an_end_before_init_is_over(
    faulted: FaultedJob, tmp_path: Path, order: str, code: int
) -> None:
    """The others do not wait for ever for a rank that will never come."""
    faulted.start(
        2, "idle", 1, tmp_path / "go", HOROACC_FAULT=order, HOROACC_START_TIMEOUT="20",
        HOROACC_GRACE_SECONDS="1",
    )  # fmt: skip
    assert faulted.end() == code
    assert faulted.told == {} and faulted.pids == {}


def test_an_order_that_is_none(faulted: FaultedJob, tmp_path: Path) -> None:
    faulted.start(2, "idle", 1, tmp_path / "go", HOROACC_FAULT="everywhere:1:1:kill")
    assert faulted.end() == 1
    assert any("setting 'fault' cannot be 'everywhere:1:1:kill'" in line for line in faulted.err)
