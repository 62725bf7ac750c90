"""One Ray cluster for all tests of this folder: a head without CPUs, and two nodes of two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_nodes import Nodes

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        for last in (2, 3):
            nodes.add(last)
        nodes.connect()
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """The cluster, in which a test leaves nothing behind."""
    yield cluster
    cluster.expect_nothing_left()
