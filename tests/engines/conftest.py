"""The tests of this folder need the environment of `make test-engines`, which has the engines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-engines"

sys.path[:0] = [str(HERE), str(HERE.parent / "launcher")]
collect_ignore_glob = [] if Path(sys.prefix) == ENVIRONMENT else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quickest: the one test of an engine that CI runs")
