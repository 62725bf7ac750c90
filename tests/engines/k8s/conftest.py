"""Pods of a manifest, as hosts of a laboratory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
for room in ("launcher", "elastic", "engines/k8s"):
    sys.path.insert(0, str(ROOT / "tests" / room))

from pods import Pods  # noqa: E402

from benchmarks.lab import Laboratory, Network  # noqa: E402

PODS = 3


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    """Makes the pods of a manifest, with horoaccrun's command line; they end with the test."""
    with Laboratory(Network(hosts=PODS)) as lab:
        yield lambda pods, *line: Pods(lab, tmp_path, pods, line)
