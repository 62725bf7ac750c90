"""Trains, is killed where DIES says, and goes on from its last checkpoint. Run by

torchrun --max-restarts 3 --nproc-per-node 3 restarts.py horovod|distributed FOLDER STEPS
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import horoacc.torch as hvd

how, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# "1@4" kills rank 1 before step 4 of attempt 0, the second entry a rank in attempt 1.
dies = dict(enumerate(os.environ.get("DIES", "").split()))
torch.manual_seed(0)
model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
if how == "horovod":
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    forward = model
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
else:
    dist.init_process_group("horoacc")
    rank, size = dist.get_rank(), dist.get_world_size()
    forward = torch.nn.parallel.DistributedDataParallel(model)
checkpoint = folder / "checkpoint.pt"
first = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
with open(folder / "log", "a") as log:
    log.write(f"start {rank} of {size} attempt {attempt} step {first} pid {os.getpid()}\n")
pause = float(os.environ.get("PAUSE", "0"))
for step in range(first, steps):
    if dies.get(attempt) == f"{rank}@{step}":
        os.kill(os.getpid(), signal.SIGKILL)
    # The same 12 samples whatever the size is, which divides 12.
    share = 12 // size
    rows = torch.arange(step * 12 + rank * share, step * 12 + (rank + 1) * share)
    inputs = torch.stack([torch.sin(rows), torch.cos(rows), torch.sin(rows / 2.0)], 1).float()
    optimizer.zero_grad()
    loss = (forward(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        part = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(part, folder / "new.pt")
        os.replace(folder / "new.pt", checkpoint)
        with open(folder / "log", "a") as log:
            log.write(f"step {step} of {size}\n")
    if not (folder / "hurry").exists():
        time.sleep(pause)
if how == "horovod":
    hvd.shutdown()
else:
    dist.destroy_process_group()
