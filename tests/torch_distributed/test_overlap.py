"""Gradients of late layers are reduced while those of earlier ones are computed: the timeline shows
it, for Horovod's optimizer and for DDP.

Nothing is timed. Rank 1 holds back its late layers until rank 0 is within the backward computation
of its first layer, and rank 0 stays in there until a reduction has been seen to begin and to end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import training
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from world import world

import horoacc.torch as hvd

SMALL_BUCKETS = {"HOROACC_FUSION_THRESHOLD": "4096"}
pytestmark = pytest.mark.ranks(2, framework="horoacc.torch", env=SMALL_BUCKETS)


class Meeting:
    """Where the ranks are in a backward pass, from `armed` on."""

    def __init__(self, all_done: Callable[[], Any]) -> None:
        self.armed = False
        self.all_done = all_done
        """Returns when what was decided before is done."""

    def late_layers_begin(self) -> None:
        if self.armed and hvd.rank() == 1:
            hvd.broadcast(torch.zeros(1), 0, name="first layer begins")

    def first_layer(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        result = compute()
        if not self.armed:
            return result
        if hvd.rank() == 0:
            begun = hvd.counters()["buckets"]
            hvd.broadcast(torch.zeros(1), 0, name="first layer begins")
            deadline = time.monotonic() + 30
            while hvd.counters()["buckets"] == begun:
                assert time.monotonic() < deadline, "no reduction began during the computation"
                result = compute()
        self.all_done()
        hvd.broadcast(torch.zeros(1), 0, name="first layer ends")
        return result


class FirstLayer(torch.autograd.Function):
    """A product with a weight, whose gradient takes as long to compute as the others' reduction."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, meeting: Meeting) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.meeting = meeting
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return None, ctx.meeting.first_layer(lambda: grad.t() @ x), None


class LateLayers(torch.autograd.Function):
    """Nothing, where the backward pass enters them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, meeting: Meeting) -> torch.Tensor:
        ctx.meeting = meeting
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.meeting.late_layers_begin()
        return grad, None


class Net(nn.Module):
    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self.late = training.network()
        self.first = nn.Parameter(torch.eye(20))
        self._meeting = meeting

    def forward(self, x: torch.Tensor) -> Any:
        x = self.late(FirstLayer.apply(x, self.first, self._meeting))
        return LateLayers.apply(x, self._meeting)


def trace_of_a_step(model: nn.Module, optimizer: Any, meeting: Meeting, folder: Path) -> Any:
    """The slices of the third step by rank 0's timeline."""
    # The first step is for the order of the gradients: DDP has one bucket then.
    *warm, last = training.own_batches(3)
    training.steps(model, optimizer, warm)
    path = folder / f"trace.{hvd.rank()}.json"
    hvd.start_timeline(str(path))
    meeting.armed = True
    training.steps(model, optimizer, [last])
    hvd.stop_timeline()
    if hvd.rank() != 0:
        return []
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def check(slices: list[dict[str, Any]]) -> None:
    if hvd.rank() != 0:
        return
    marks = {one["args"]["tensor"]: one for one in slices if one["name"] == "broadcast"}
    begin = marks["broadcast.first layer begins"]["ts"]
    end = marks["broadcast.first layer ends"]["ts"]
    calls = [one for one in slices if one["name"] == "allreduce"]
    reduced = {one["tid"] for one in calls}
    runs = [(one["ts"], one["ts"] + one["dur"]) for one in slices
            if one["name"] == "ALLREDUCE" and one["tid"] in reduced]  # fmt: skip
    within = [run for run in runs if begin < run[0] <= run[1] < end]
    assert within, (begin, end, runs)
    # They were late layers' gradients: the first one's was handed over afterwards.
    assert max(one["ts"] for one in calls) > end


def test_optimizer(tmp_path: Path) -> None:
    meeting = Meeting(hvd.barrier)
    model = Net(meeting)
    check(trace_of_a_step(model, training.wrapped(model), meeting, tmp_path))


def test_ddp(tmp_path: Path) -> None:
    world()
    meeting = Meeting(dist.barrier)
    model = DistributedDataParallel(Net(meeting), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    check(trace_of_a_step(model, optimizer, meeting, tmp_path))
