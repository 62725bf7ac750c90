"""What trains on torch.distributed trains to the same parameters as with Gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from world import values, world

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")

_gloo: list[dist.ProcessGroup] = []


def gloo() -> dist.ProcessGroup:
    """A group of the same ranks over Gloo, made once in a process."""
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
    return _gloo[0]


class Net(nn.Module):
    """Layers of which one is used in every second step only, if asked for.

    What the norm follows has no bias: its gradient would be rounding alone, which Adam makes steps
    of full length of.
    """

    def __init__(self, alternates: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(20, 300, bias=False)
        self.norm = nn.BatchNorm1d(300)
        self.sometimes = nn.Linear(300, 300)
        self.last = nn.Linear(300, 4)
        self.alternates = alternates
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        x = torch.relu(self.norm(self.first(x)))
        if not self.alternates or self.steps % 2:
            x = torch.relu(self.sometimes(x))
        return self.last(x)


def trained(model: nn.Module, rank: int, optimizer: Any, steps: int = 4) -> list[torch.Tensor]:
    loss_of = nn.MSELoss()
    for step in range(steps):
        optimizer.zero_grad()
        x = values((8, 20), torch.float32, rank, step) / 8
        loss_of(model(x), x[:, :4]).backward()
        optimizer.step()
    return [param.detach().clone() for param in model.parameters()]


def seeded(make: Callable[[], nn.Module] = Net) -> nn.Module:
    torch.manual_seed(7)
    return make()


def agree(ours: list[torch.Tensor], theirs: list[torch.Tensor], size: int) -> None:
    """Two ranks have one order of summation; with more, Gloo's is another one."""
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        if size == 2:
            assert torch.equal(mine, other)
        else:
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


# Adam divides by the gradient's size. This keeps it from dividing rounding by something as small.
EPSILON = 1e-3

DDP = {
    "plain": {},
    "bucket_view": {"gradient_as_bucket_view": True},
    "small_buckets": {"bucket_cap_mb": 0.05},
    "static_graph": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
}


@pytest.mark.parametrize("how", DDP)
def test_ddp(how: str) -> None:
    rank, size = world()
    results = []
    for group in (None, gloo()):
        model = DistributedDataParallel(
            seeded(lambda: Net(alternates=how == "unused")), process_group=group, **DDP[how]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        results.append(trained(model, rank, optimizer))
    agree(*results, size)


def test_ddp_accumulates_without_communication() -> None:
    rank, size = world()
    results = []
    for group in (None, gloo()):
        model = DistributedDataParallel(seeded(), process_group=group)
        optimizer = torch.optim.Adam(model.parameters(), eps=EPSILON)
        x = values((8, 20), torch.float32, rank) / 8
        with model.no_sync():
            model(x).sum().backward()
        model(x * 2).sum().backward()
        optimizer.step()
        results.append([param.detach().clone() for param in model.parameters()])
    agree(*results, size)


@pytest.mark.parametrize("hook", ["fp16", "python", "power_sgd"])
def test_ddp_comm_hooks(hook: str) -> None:
    rank, size = world()

    # DDP looks at the annotations of a hook, so that there are none.
    def reduce(group, bucket):
        work = dist.all_reduce(bucket.buffer().div_(size), group=group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def leave(group, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def after_training(group: Any, chosen: Any) -> list[torch.Tensor]:
        state = group
        if chosen is powerSGD_hook.powerSGD_hook:
            torch.manual_seed(1)
            state = powerSGD_hook.PowerSGDState(group, 2, start_powerSGD_iter=2)
        model = DistributedDataParallel(seeded(), process_group=group)
        model.register_comm_hook(state, chosen)
        return trained(model, rank, torch.optim.SGD(model.parameters(), lr=0.1))

    hooks = {"fp16": default_hooks.fp16_compress_hook, "python": reduce,
             "power_sgd": powerSGD_hook.powerSGD_hook}  # fmt: skip
    ours, theirs = (after_training(group, hooks[hook]) for group in (dist.group.WORLD, gloo()))
    if hook == "python":
        agree(ours, theirs, size)
    # 16-bit sums are rounded once here, and between ranks in Gloo. That is a small part of what
    # training without any communication makes of a parameter.
    alone = after_training(dist.group.WORLD, leave)
    for mine, other, local in zip(ours, theirs, alone, strict=True):
        assert (mine - other).norm() < 0.01 * (local - other).norm()


def test_ddp_with_sparse_gradients() -> None:
    rank, size = world()
    results = []
    for group in (None, gloo()):
        model = DistributedDataParallel(
            seeded(lambda: nn.EmbeddingBag(50, 8, mode="sum", sparse=True)), process_group=group
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([[rank, step, 7], [3, 3, rank + 20]])).square().sum().backward()
            optimizer.step()
        results.append([param.detach().clone() for param in model.parameters()])
    agree(*results, size)


def test_ddp_buckets_are_reduced_where_they_lie() -> None:
    rank, _ = world()
    model = DistributedDataParallel(seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained(model, rank, optimizer, steps=2)  # the buckets are rebuilt after the first step
    before = hvd.counters()
    trained(model, rank, optimizer, steps=3)
    after = hvd.counters()
    params = sum(param.numel() for param in model.parameters()) * 4
    assert after["arena_bytes"] - before["arena_bytes"] == 3 * params
    assert after["window_bytes"] == before["window_bytes"]


def test_fsdp2() -> None:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = world()
    results = []
    for mesh in (init_device_mesh("cpu", (size,)), DeviceMesh.from_group(gloo(), "cpu")):
        model = seeded(lambda: nn.Sequential(nn.Linear(20, 65), nn.ReLU(), nn.Linear(65, 4)))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=EPSILON)
        trained(model, rank, optimizer)
        results.append([param.full_tensor().detach() for param in model.parameters()])
    agree(*results, size)


def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = world()
    results = []
    for group in (dist.group.WORLD, gloo()):
        model = DistributedDataParallel(seeded(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.01, eps=EPSILON
        )
        results.append(trained(model, rank, optimizer))
    agree(*results, size)
