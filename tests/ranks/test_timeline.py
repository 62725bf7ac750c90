"""The timeline is a valid Chrome trace once it is stopped, and can be started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horoacc as hvd


def events(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())
    return found if isinstance(found, list) else found["traceEvents"]


@pytest.mark.ranks(1, 2)
def test_start_and_stop(tmp_path: Path) -> None:
    path = tmp_path / f"trace.{hvd.rank()}.json"
    for time in ("first", "second"):
        hvd.start_timeline(str(path))
        for _ in range(20):
            hvd.allreduce(np.ones(1000), name=f"{time} tensor")
        hvd.stop_timeline()
        hvd.barrier()
        if path.exists():
            assert f"{time} tensor" in json.dumps(events(path))
    assert path.exists() == (hvd.rank() == 0)
    hvd.allreduce(np.ones(3), name="after")
