"""The timeline is a valid Chrome trace whenever somebody looks, and can be started again."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import horoacc as hvd


def events(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())
    return found if isinstance(found, list) else found["traceEvents"]


def events_by_now(path: Path) -> list[dict[str, Any]]:
    """A look in the middle of a write may miss the bracket, which the trace format allows.

    Reading takes several system calls, so what was read counts only if the file is still the same.
    """
    text, state = "", (-1, -1)
    while state != (now := (path.stat().st_size, path.stat().st_mtime_ns)):
        text, state = path.read_text().rstrip(), now
    found: list[dict[str, Any]] = json.loads(text if text.endswith("]") else text + "]")
    return found


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


@pytest.mark.ranks(2)
def test_whoever_looks_meanwhile_sees_whole_events(tmp_path: Path) -> None:
    path = tmp_path / f"trace.{hvd.rank()}.json"
    hvd.start_timeline(str(path))
    looked_at: set[int] = set()
    end = monotonic() + 20
    more = True
    while more:
        hvd.allreduce(np.ones(1000), name="meanwhile")
        if hvd.rank() == 0:
            looked_at.add(len(events_by_now(path)))
        # The file has grown between two looks while the job ran.
        more = bool(hvd.broadcast(np.array([len(looked_at) < 4 and monotonic() < end]), 0)[0])
    hvd.stop_timeline()
    assert hvd.rank() != 0 or len(looked_at) == 4
