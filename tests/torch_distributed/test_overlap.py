"""Gradients of late layers are reduced while those of earlier ones are computed: the timeline shows
it, for Horovod's optimizer and for DDP.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import training
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from world import world

import horoacc.torch as hvd

SMALL_BUCKETS = {"HOROACC_FUSION_THRESHOLD": "4096"}
pytestmark = pytest.mark.ranks(2, framework="horoacc.torch", env=SMALL_BUCKETS)


class Held:
    """Once told to, keeps the first layer's gradient, the last one, until something was reduced."""

    def __init__(self, model: nn.Module) -> None:
        self._begun = -1
        next(model.parameters()).register_hook(self._hold)

    def begin(self) -> None:
        self._begun = hvd.counters()["buckets"]

    def _hold(self, grad: torch.Tensor) -> None:
        deadline = time.monotonic() + 20
        while hvd.counters()["buckets"] == self._begun and time.monotonic() < deadline:
            time.sleep(0.001)


def traced_step(model: nn.Module, optimizer: Any, folder: Path) -> list[dict[str, Any]]:
    """The slices of the third step, on rank 0."""
    held = Held(model)
    # The first step is for the order of the gradients: DDP has one bucket then.
    *warm, last = training.own_batches(3)
    training.steps(model, optimizer, warm)
    path = folder / f"trace.{hvd.rank()}.json"
    hvd.start_timeline(str(path))
    held.begin()
    training.steps(model, optimizer, [last])
    hvd.stop_timeline()
    if hvd.rank() != 0:
        return []
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def check(slices: list[dict[str, Any]]) -> None:
    if hvd.rank() != 0:
        return
    calls = [one["ts"] for one in slices if one["name"] == "allreduce"]
    runs = [one["ts"] + one["dur"] for one in slices if one["name"] == "EXECUTE"]
    assert len(calls) > 1
    assert min(runs) < max(calls), "nothing was reduced before the last gradient was handed over"


def test_optimizer(tmp_path: Path) -> None:
    model = training.network()
    check(traced_step(model, training.wrapped(model), tmp_path))


def test_ddp(tmp_path: Path) -> None:
    world()
    model = DistributedDataParallel(training.network(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    check(traced_step(model, optimizer, tmp_path))
