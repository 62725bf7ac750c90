"""The tests of this folder need the environment of `make test-engines`, which has the engines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-engines"

sys.path.insert(0, str(HERE))
collect_ignore_glob = [] if Path(sys.prefix) == ENVIRONMENT else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quickest: the one test of an engine that CI runs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where the quickest are asked for, each engine has one: none is left out silently."""
    if config.option.markexpr == "quickest":
        marked = [item for item in items if item.get_closest_marker("quickest")]
        engines = sorted(item.path.relative_to(HERE).parts[0] for item in marked)
        if engines != sorted(path.parent.name for path in HERE.glob("*/README.md")):
            raise pytest.UsageError(f"engines with a test that is marked as quickest: {engines}")
