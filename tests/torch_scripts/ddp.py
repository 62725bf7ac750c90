"""DistributedDataParallel, after "Getting Started with Distributed Data Parallel" (pytorch.org).

torchrun --nproc-per-node 2 ddp.py
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert rank == int(os.environ["RANK"])
    torch.manual_seed(rank)

    model = ToyModel()
    ddp_model = DDP(model)
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    checkpoint = os.path.join(tempfile.gettempdir(), f"ddp-{os.environ['MASTER_PORT']}.pt")
    if rank == 0:
        torch.save(ddp_model.state_dict(), checkpoint)
    dist.barrier()
    ddp_model.load_state_dict(torch.load(checkpoint, weights_only=True))
    dist.barrier()
    if rank == 0:
        os.remove(checkpoint)

    for _ in range(3):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        labels = torch.randn(20, 5)
        loss_fn(outputs, labels).backward()
        optimizer.step()

    digest = torch.cat([param.detach().flatten() for param in model.parameters()])
    everyone = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, digest)
    assert all(torch.equal(digest, other) for other in everyone)
    if rank == 0:
        sys.stdout.write(f"{dist.get_backend()} {digest.double().sum().item():.12f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
