"""A rank that trains under autotune: python tuned.py FOLDER

It trains until a file END is in FOLDER, and for 50 steps at least. Each rank notes the tuned
settings after its first step in FIRST.RANK. Rank 0 makes END itself once there are winners in the
cache, unless a file GO_ON is there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

import horoacc.torch as hvd
from horoacc import process

folder = Path(sys.argv[1])
winners = Path(os.environ["HOROACC_CACHE_DIR"]) / "autotune"
torch.set_num_threads(1)
hvd.init()
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
batch = torch.ones(2, 64)
steps, ended = 0, False
while not ended:
    for _ in range(50):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        steps += 1
        if steps == 1:
            own = folder / f"first.{hvd.rank()}"
            own.write_text(" ".join(map(str, process.engine().tuned)))
    done = hvd.rank() == 0 and winners.is_dir() and any(winners.glob("*.json"))
    if done and not (folder / "go_on").exists():
        (folder / "end").touch()
    seen = hvd.allreduce(torch.tensor([float((folder / "end").exists())]), name="e", op=hvd.Max)
    ended = bool(seen)
print("steps", steps)
