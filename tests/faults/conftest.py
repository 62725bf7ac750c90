"""Fixtures for tests that do something to the ranks of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))

from faulted_jobs import FaultedJob
from launcher_jobs import Job


@pytest.fixture
def faulted() -> Iterator[FaultedJob]:
    """A job to which something is done; whatever it leaves behind fails the test."""
    with Job() as job:
        yield FaultedJob(job)
