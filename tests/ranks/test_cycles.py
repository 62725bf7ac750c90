"""Joining and leaving many times through a framework, whose tensors may outlive the engine
in which they lie (row 26 of docs/faults.md; `faults/cycles.py` measures more)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

import cycles
import cycling_rank
import torch

import horoacc.torch as hvd
from horoacc import basics
from horoacc.errors import NotInitialized

TIMES = 20


@pytest.mark.parametrize(
    "env", [{"HOROACC_ARENA": "all"}, {"HOROACC_ARENA": "all", "HOROACC_SIMULATED_HOSTS": "1+1"}]
)
@pytest.mark.ranks(2, framework="horoacc.torch")
def test_torch_leaves_what_its_tensors_lie_in() -> None:
    hvd.barrier()
    outliving = torch.arange(100_000)
    assert basics.engine().arena_contains(outliving.data_ptr())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter := torch.nn.Parameter(torch.ones(3))], lr=1.0),
        named_parameters=[("parameter", parameter)],
    )
    hvd.shutdown()
    cycles.grown(cycling_rank.holdings("horoacc.torch", TIMES), TIMES, kept=False)
    assert torch.equal(outliving, torch.tensor(range(100_000)))
    outliving += 1
    assert int(outliving.sum()) == 100_000 * 100_001 // 2
    # The optimizer's hooks are on the parameter still, and hold the first engine.
    parameter.sum().backward()
    with pytest.raises(NotInitialized):
        optimizer.step()
    hvd.init()
    hvd.barrier()
