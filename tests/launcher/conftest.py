"""Fixtures for tests that start horoaccrun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_jobs import MODES, Job


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as jobs:
        yield jobs


def _flags(name: str) -> list[str]:
    flags = MODES[name]
    if len(flags) == 2 and not Path(flags[1]).exists():
        pytest.skip(f"{name}'s mpirun is not installed")
    return flags


@pytest.fixture(params=["tcp", "openmpi"])
def mode(request: pytest.FixtureRequest) -> list[str]:
    """The flags that choose how ranks are started: the two usual ways."""
    return _flags(request.param)


@pytest.fixture(params=list(MODES))
def any_mode(request: pytest.FixtureRequest) -> list[str]:
    """Every way to start ranks."""
    return _flags(request.param)
