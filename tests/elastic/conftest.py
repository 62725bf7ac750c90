"""Fixtures for tests of elastic jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launcher"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))

from elastic_jobs import Elastic
from launcher_jobs import Job


@pytest.fixture
def elastic(tmp_path: Path) -> Iterator[Elastic]:
    """A job whose plan is to be given; a process that it leaves behind fails the test."""
    with Job() as job:
        yield Elastic(job, tmp_path)
