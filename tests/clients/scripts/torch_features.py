"""What torch.distributed is used for beyond DDP, each with the parameters that come of it."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny import data, model
from told import BACKEND, tell
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(net: nn.Module, *, shares: bool = True) -> torch.optim.Optimizer:
    """Two epochs; each rank has its share of the data, or all of it."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False)
    sampler = DistributedSampler(data()) if shares else None
    for _ in range(2):
        for x, y in DataLoader(data(), batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return optimizer


def ddp(hook: str) -> nn.Module:
    net = DistributedDataParallel(model())
    if hook == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(net)
    return net


def fsdp2() -> nn.Module:
    net = model()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=MESH)
    train(net)
    return net


def tensor_parallel() -> nn.Module:
    net = model()
    parallelize_module(net, MESH, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(net, shares=False)
    return net


def dtensor() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    a = distribute_tensor(torch.randn(12, 8, generator=draw), MESH, [Shard(0)])
    b = distribute_tensor(torch.randn(8, 12, generator=draw), MESH, [Shard(0)])
    product = a.redistribute(placements=[Shard(1)]) @ b  # partial sums
    return [product.redistribute(placements=[kind]) for kind in (Shard(0), Replicate())]


def checkpoint() -> nn.Module:
    """A sharded model and its optimizer, saved and loaded into another."""
    nets = [fully_shard(model(), mesh=MESH) for _ in range(2)]
    optimizers = [train(nets[0]), torch.optim.AdamW(nets[1].parameters(), lr=0.01)]
    folder = os.path.join(os.environ["TOLD"], "checkpoint")
    for net, optimizer, call in zip(nets, optimizers, (dcp.save, dcp.load), strict=True):
        state = dict(zip(("net", "optimizer"), get_state_dict(net, optimizer), strict=True))
        call(state, checkpoint_id=folder)
        set_state_dict(
            net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"]
        )
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one.full_tensor(), other.full_tensor())
    return nets[1]


def pipeline() -> nn.Module:
    """Two stages on two ranks."""
    rank, whole = dist.get_rank(), model()
    part = nn.Sequential(*(whole[:2] if rank == 0 else whole[2:]))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    for x, y in DataLoader(data(), batch_size=16):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        optimizer.step()
    return part


dist.init_process_group(BACKEND)
MESH = init_device_mesh("cpu", (dist.get_world_size(),))
FEATURES = {
    "ddp": lambda: ddp("none"),
    "fp16_hook": lambda: ddp("fp16"),
    "powersgd_hook": lambda: ddp("powersgd"),
    "fsdp2": fsdp2,
    "tensor_parallel": tensor_parallel,
    "dtensor": dtensor,
    "checkpoint": checkpoint,
    "pipeline": pipeline,
}
for name, run in FEATURES.items():
    made = run()
    tell(made if isinstance(made, list) else made.parameters(), dist.get_rank(), name)
dist.destroy_process_group()
