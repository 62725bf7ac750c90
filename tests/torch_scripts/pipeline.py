"""A pipeline of stages with send and recv, in the form of "Writing Distributed Applications with
PyTorch" (pytorch.org): the script starts its own processes and numbers them.

python pipeline.py [processes]
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

MICROBATCHES = 4


def run(rank, size):
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(3):
        kept = []
        for micro in range(MICROBATCHES):
            if rank == 0:
                generator = torch.Generator().manual_seed(10 * step + micro)
                x = torch.randn(4, 8, generator=generator)
            else:
                x = torch.empty(4, 8)
                dist.recv(x, src=rank - 1, tag=micro)
                x.requires_grad_()
            y = stage(x)
            if rank < size - 1:
                dist.isend(y.detach(), dst=rank + 1, tag=micro).wait()
            kept.append((x, y))
        optimizer.zero_grad()
        waits = []
        for micro, (x, y) in enumerate(kept):
            if rank == size - 1:
                y.square().mean().backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, src=rank + 1, tag=100 + micro)
                y.backward(grad)
            if rank > 0:
                waits.append(dist.isend(x.grad, dst=rank - 1, tag=100 + micro))
        for wait in waits:
            wait.wait()
        optimizer.step()
    mine = torch.tensor([sum(float(p.double().sum()) for p in stage.parameters())])
    sums = [torch.zeros(1) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, sums, dst=0)
    if rank == 0:
        numbers = " ".join(f"{number.item():.6f}" for number in sums)
        sys.stdout.write(f"{dist.get_backend()} {numbers}\n")
        sys.stdout.flush()


def init_process(rank, size, port, fn, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    processes = []
    mp.set_start_method("spawn")
    for rank in range(size):
        p = mp.Process(target=init_process, args=(rank, size, free_port, run))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
        assert p.exitcode == 0
