"""Ctrl-C and a scheduler's signals, to the launcher and to a rank (row 31)."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable

from faulted_jobs import PHASES, FaultedJob

ALL = [*itertools.product((2, 4), (*PHASES, "shutdown"))]


def test_the_launcher_is_told(another: Callable[..., FaultedJob]) -> None:
    jobs = [another(size, phase, 1, HOROACC_GRACE_SECONDS="1") for size, phase in ALL]
    numbers = itertools.cycle((signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT))
    told = [*zip(jobs, numbers, strict=False)]
    for job in jobs:
        job.await_phase()
    for job, number in told:
        job.process.send_signal(number)
    for job, number in told:
        assert job.end() == 128 + number, (job.size, job.phase, job.err)


def test_a_rank_is_told(another: Callable[..., FaultedJob]) -> None:
    """As a scheduler does that reclaims one process: the others learn whom they lost."""
    jobs = [another(size, phase, 1) for size, phase in ALL]
    for job in jobs:
        job.await_phase()
    for job in jobs:
        job.signal(1, signal.SIGINT)
        if job.phase == "idle":  # who calls nothing hears of it with the next call
            job.go.touch()
    for job in jobs:
        assert job.end() == 128 + signal.SIGINT, (job.size, job.phase, job.err)
        assert sorted(job.told) == sorted({*range(job.size)} - {1}), (job.phase, job.told)
        for told in job.told.values():
            if job.phase == "shutdown" and "error" not in told:
                continue  # it had left by then
            assert (told["error"], told["culprit"]) == ("PeerLost", 1), (job.phase, told)
            assert told["host"] == os.uname().nodename and told["hint"], told
