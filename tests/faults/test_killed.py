"""A rank that is killed: the others' errors name rank, host and call (rows 1 to 4)."""

from __future__ import annotations

import itertools
import random
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faulted_jobs import NOTICE_SECONDS, PHASES, FaultedJob, expect_told
from holdups import Holdups
from kill_soak import kill_once

HOSTS = {"HOROACC_SIMULATED_HOSTS": "1+1"}
FOUR_HOSTS = {"HOROACC_SIMULATED_HOSTS": "2+2"}
EACH = {"HOROACC_SIMULATED_HOSTS": "each"}
START_SECONDS = 30.0  # the fault matrix's bound for init()
SIZES_AND_PHASES = [*itertools.product((2, 4), (*PHASES, "shutdown"))]


def _expect_lost(job: FaultedJob, victim: int, killed: int, within: float) -> None:
    """Checks the errors of one job's survivors, each of which had made a call."""
    for error in expect_told(job, job.size, victim, killed, within):
        if job.phase == "shutdown" and "error" not in error:
            continue  # it needed nothing of the victim any more, and did not wait for it
        assert error["error"] == "PeerLost", error
        assert re.search(rf"\brank {victim}\b", error["text"]), error
        assert (error["culprit"], error["host"]) == (victim, socket.gethostname()), error
        assert f"rank {victim} on host" in error["hint"], error
        if job.phase == "shutdown":
            continue
        # The first call was agreed on, and so this is a later one.
        assert error["collective"] > 1, error
        if job.phase != "collective":
            assert error["tensor"] == "allreduce.late", error
        else:
            assert error["tensor"].startswith("allreduce."), error


@pytest.mark.parametrize(
    ("how", "number"),
    [("shm", signal.SIGKILL), ("hosts", signal.SIGKILL), ("links", signal.SIGSEGV)],
)
def test_kill(another: Callable[..., FaultedJob], how: str, number: signal.Signals) -> None:
    """Every phase at once, the first rank in some of them and the last in others. The kills take
    turns: a kill on 2 ranks of one host is one on 4 ranks of two hosts, and the other way round."""
    jobs = []
    for place, (size, phase) in enumerate(SIZES_AND_PHASES):
        if how != "links" and (place + size // 4) % 2 == (how == "shm"):
            continue
        variables = {"shm": {}, "links": EACH, "hosts": HOSTS if size == 2 else FOUR_HOSTS}[how]
        victim = (0, size - 1)[(place // 2 + (how != "shm")) % 2]
        jobs.append((another(size, phase, victim, **variables), victim))
    for job, _ in jobs:
        job.await_phase()
    killed = []
    with Holdups() as holdups:
        for job, victim in jobs:
            killed.append(time.monotonic_ns())
            job.signal(victim, number)
            if job.phase == "idle":
                job.go.touch()
        for job, _ in jobs:
            assert job.end() == 128 + number, (job.size, job.phase, job.err)
    for (job, victim), since in zip(jobs, killed, strict=True):
        _expect_lost(job, victim, since, holdups.allow(NOTICE_SECONDS))


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_an_end_while_it_leaves(another: Callable[..., FaultedJob], how: str) -> None:
    """In the middle of its own shutdown: it has told of it or not, but the others do not wait."""
    jobs = []
    for place, (size, variables) in enumerate(itertools.product((2, 4), ({}, EACH, FOUR_HOSTS))):
        if size == 2 and variables == FOUR_HOSTS:
            continue  # two hosts of one rank are those of `EACH`
        victim = (0, size - 1)[place % 2]
        order = {"HOROACC_FAULT": f"shutdown:{victim}:1:{how}"}
        jobs.append((another(size, "leaving", victim, **variables | order), victim))
    for job, _ in jobs:
        # A call that a rank has left may go on at the others, which would get the error in it.
        job.await_phase()
        job.go.touch()
    for job, victim in jobs:
        assert job.end() == {"exit": 70, "kill": 128 + signal.SIGKILL}[how], (job.size, job.err)
        for error in expect_told(job, job.size, victim, None):
            assert error["error"] in ("PeerLost", "Aborted"), error
            assert re.search(rf"\brank {victim}\b", error["text"]), error
            assert error["host"] == socket.gethostname() and error["hint"], error
            assert (error["tensor"], error["collective"] > 1) == ("allreduce.late", True), error


@pytest.mark.parametrize(
    ("size", "hosts"), [(2, "each"), (4, ""), (4, "2+2"), (8, ""), (8, "2+2+2+2")]
)
def test_a_kill_at_a_random_moment(tmp_path: Path, size: int, hosts: str) -> None:
    """One of those of which kill_soak.py does a hundred."""
    chance = random.Random()
    with Holdups() as holdups:
        took = kill_once(
            size, chance.random(), chance.randrange(size), tmp_path, HOROACC_SIMULATED_HOSTS=hosts
        )
    assert took < holdups.allow(NOTICE_SECONDS)


# Where in the core a rank ends, and how: a lock that it holds there must not block the others.
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
    with Holdups() as holdups:
        faulted.start(size, "collective", victim, tmp_path / "go", HOROACC_FAULT=order)
        assert faulted.end() == code
    for error in expect_told(faulted, size, victim, None, holdups.allow(NOTICE_SECONDS)):
        assert error["error"] == "PeerLost", error


@pytest.mark.parametrize(
    ("size", "order", "variables"),
    [
        (4, "send:1:30:exit", EACH),
        (4, "receive:1:30:kill", FOUR_HOSTS),
        (2, "decide:0:9:exit", HOSTS),
    ],
)
def test_an_end_at_a_link(
    faulted: FaultedJob, tmp_path: Path, size: int, order: str, variables: dict[str, str]
) -> None:
    victim = int(order.split(":")[1])
    with Holdups() as holdups:
        faulted.start(size, "collective", victim, tmp_path / "go", HOROACC_FAULT=order, **variables)
        assert faulted.end() in (70, 128 + signal.SIGKILL)
    for error in expect_told(faulted, size, victim, None, holdups.allow(NOTICE_SECONDS)):
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
    with Holdups() as holdups:
        died = faulted.await_death(int(order.split(":")[1]))
        assert faulted.end() == code
        took = (time.monotonic_ns() - died) / 1e9
    assert faulted.told == {} and faulted.pids == {}
    assert took < holdups.allow(START_SECONDS)


def test_an_order_that_is_none(faulted: FaultedJob, tmp_path: Path) -> None:
    faulted.start(2, "idle", 1, tmp_path / "go", HOROACC_FAULT="everywhere:1:1:kill")
    assert faulted.end() == 1
    assert any("setting 'fault' cannot be 'everywhere:1:1:kill'" in line for line in faulted.err)
