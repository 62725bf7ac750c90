"""FSDP2, after "Getting Started with Fully Sharded Data Parallel (FSDP2)" (pytorch.org).

torchrun --nproc-per-node 2 fsdp2.py
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, dim=16, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for param in model.parameters():
        assert isinstance(param, DTensor)

    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        generator = torch.Generator().manual_seed(100 * epoch + rank)
        x = torch.randn(8, 16, generator=generator)
        loss = model(x).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()

    total = 0.0
    for name, sharded in model.state_dict().items():
        full = sharded.full_tensor()
        total += float(full.double().sum()) * (1 + len(name) % 3)
    if rank == 0:
        sys.stdout.write(f"{dist.get_backend()} {total:.12f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
