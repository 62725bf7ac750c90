"""Fixtures for tests that do something to the ranks of a job, or to what is between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from faulted_jobs import FaultedJob
from launcher_jobs import Job
from linked_ranks import LinkedRanks


@pytest.fixture
def faulted() -> Iterator[FaultedJob]:
    """A job to which something is done; whatever it leaves behind fails the test."""
    with Job() as job:
        yield FaultedJob(job)


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
