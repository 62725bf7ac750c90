"""Makes `fake_gpu` importable here as it is in the ranks, and builds it before they start."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    import fake_gpu  # noqa: PLC0415 - the path is set above

    fake_gpu.libraries()
