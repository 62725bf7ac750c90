"""Makes the fake GPU importable here as it is in the ranks, and builds it before they start."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _built(request: pytest.FixtureRequest) -> None:
    for framework in ("fake_gpu", "fake_tensorflow"):
        if side := getattr(request.module, framework, None):
            side.libraries()
