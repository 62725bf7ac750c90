"""A cluster for the tests of a module, and one for each test that breaks it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
for room in ("launcher", "elastic", "engines/slurm"):
    sys.path.insert(0, str(ROOT / "tests" / room))

from cluster import Slurm, cluster  # noqa: E402


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm"), 3) as made:
        yield made


@pytest.fixture
def slurm(cluster_of_module: Slurm) -> Iterator[Slurm]:
    """Idle nodes; a test that fails leaves no job to the next one."""
    yield cluster_of_module
    cluster_of_module.end_jobs()


@pytest.fixture
def own_slurm(tmp_path: Path) -> Iterator[Slurm]:
    """For one test."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    with cluster(folder, 3) as made:
        yield made
