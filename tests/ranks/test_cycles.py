"""Joining and leaving many times through a framework's door, which keeps every engine (row 26 of
docs/faults.md; `faults/cycles.py` measures more)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

import cycles
import cycling_rank

import horoacc.torch as hvd

TIMES = 20


@pytest.mark.parametrize(
    "env", [{"HOROACC_ARENA": "all"}, {"HOROACC_ARENA": "all", "HOROACC_PARTED_HOSTS": "1+1"}]
)
@pytest.mark.ranks(2, framework="horoacc.torch")
def test_torch_leaves_what_its_tensors_may_lie_in() -> None:
    hvd.barrier()
    hvd.shutdown()
    cycles.grown(cycling_rank.holdings("horoacc.torch", TIMES), TIMES, kept=True)
    hvd.init()
    hvd.barrier()
