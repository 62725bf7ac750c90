"""Fixtures for tests that disturb the ranks of a job, or the network between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from faulted_jobs import FaultedJob
from launcher_jobs import Job
from linked_ranks import LinkedRanks


@pytest.fixture
def faulted() -> Iterator[FaultedJob]:
    """A job to disturb; a process that it leaves behind fails the test."""
    with Job() as job:
        yield FaultedJob(job)


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[..., FaultedJob]]:
    """Starts one of several jobs that live side by side, as `FaultedJob.start` does, and gives it.

    Its ranks' file to go on is of its own, and in the attribute `go`.
    """
    started: list[FaultedJob] = []

    def start(size: int, phase: str, victim: int, *flags: str, **variables: str) -> FaultedJob:
        one = FaultedJob(Job())
        started.append(one)
        one.start(size, phase, victim, tmp_path / f"go{len(started)}", *flags, **variables)
        return one

    yield start
    left = [line for one in started for line in one.job.end_all()]
    assert not left, "the test's jobs left processes behind"


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedRanks]:
    """Two ranks as if on hosts of their own, not started yet."""
    ranks = LinkedRanks(Job(), tmp_path)
    yield ranks
    ranks.kill()


@pytest.fixture
def job() -> Iterator[Job]:
    """Jobs of horoaccrun."""
    jobs = Job()
    yield jobs
    assert not jobs.alive(), "the test's job left processes behind"
