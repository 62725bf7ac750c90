"""Ctrl-C and a scheduler's signals, to the launcher and to a rank (row 31)."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import unauthenticated_peers as peers
from faulted_jobs import PHASES, FaultedJob
from holdups import Holdups
from launcher_jobs import Job
from linked_ranks import free_port

END_SECONDS = 5.0  # the fault matrix's bound
ALL = [*itertools.product((2, 4), (*PHASES, "shutdown")), (8, "negotiating"), (8, "collective")]


def test_the_launcher_is_told(another: Callable[..., FaultedJob]) -> None:
    jobs = [another(size, phase, 1, HOROACC_GRACE_SECONDS="1") for size, phase in ALL]
    numbers = itertools.cycle((signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT))
    told = [*zip(jobs, numbers, strict=False)]
    for job in jobs:
        job.await_phase()
    with Holdups() as holdups:
        begun = time.monotonic()
        for job, number in told:
            job.process.send_signal(number)
        for job, number in told:
            assert job.end() == 128 + number, (job.size, job.phase, job.err)
        took = time.monotonic() - begun
    print(f"the jobs ended after {took:.1f} s")
    assert took < holdups.allow(END_SECONDS)


def test_a_rank_is_told(another: Callable[..., FaultedJob]) -> None:
    """As a scheduler does that reclaims one process: the others' error names the lost rank."""
    jobs = [another(size, phase, 1) for size, phase in ALL]
    for job in jobs:
        job.await_phase()
    told_at = []
    with Holdups() as holdups:
        for job in jobs:
            told_at.append(time.monotonic_ns())
            job.signal(1, signal.SIGINT)
            if job.phase == "idle":  # a rank that calls nothing gets it with the next call
                job.go.touch()
        for job in jobs:
            assert job.end() == 128 + signal.SIGINT, (job.size, job.phase, job.err)
    for job, since in zip(jobs, told_at, strict=True):
        assert sorted(job.told) == sorted({*range(job.size)} - {1}), (job.phase, job.told)
        for told in job.told.values():
            if job.phase == "shutdown" and "error" not in told:
                continue  # it had left by then
            assert (told["error"], told["culprit"]) == ("PeerLost", 1), (job.phase, told)
            assert (told["at_ns"] - since) / 1e9 < holdups.allow(END_SECONDS), (job.phase, told)
            assert told["host"] == os.uname().nodename and told["hint"], told


COMES = """
import horoacc as hvd
try:
    hvd.init()
except KeyboardInterrupt:
    print("away", flush=True)
    hvd.init()
print("met", hvd.rank(), flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize("away", [0, 1])
def test_a_rank_that_waits_in_init_is_cancelled(job: Job, away: int) -> None:
    """The other has not come yet; when it does, the cancelled one has come back."""
    port = free_port()

    with contextlib.ExitStack() as left:

        def start(rank: int) -> subprocess.Popen[str]:
            place = {
                "RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2, "SECRET": "s" * 64,
                "RENDEZVOUS": f"127.0.0.1:{port}", "START_TIMEOUT": 600,
            }  # fmt: skip
            values = {f"HOROACC_{name}": str(value) for name, value in place.items()}
            process = subprocess.Popen(
                [sys.executable, "-c", COMES],
                env=job.environ(**values), stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            left.callback(process.kill)
            return process

        with contextlib.ExitStack() as silent:
            if away == 0:
                waits = start(0)
                end = time.monotonic() + 90
                while not peers.ports_of(waits.pid):
                    assert time.monotonic() < end and waits.poll() is None
                    time.sleep(0.02)
            else:  # it has connected to a silent listener
                listener = silent.enter_context(socket.create_server(("127.0.0.1", port)))
                listener.settimeout(90)
                waits = start(1)
                silent.enter_context(listener.accept()[0])
            waits.send_signal(signal.SIGINT)
            assert waits.stdout and waits.stdout.readline() == "away\n"
        other = start(1 - away)
        for rank, process in ((away, waits), (1 - away, other)):
            out, _ = process.communicate(timeout=300)
            assert (process.returncode, out) == (0, f"met {rank}\n")
    job.expect_nothing_left()
