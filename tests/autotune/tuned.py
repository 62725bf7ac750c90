"""A rank that trains under autotune: python tuned.py FOLDER

It trains until a file END is in FOLDER, and for 50 steps at least. Each rank notes the tuned
settings after its first step in FIRST.RANK. Rank 0 makes END itself once there are winners in the
cache. If a file ASK is there, it does so once there was a trial, and before that it asks what
`explain` and `top` tell of this job and writes it to EXPLAIN and TOP, and the metrics to METRICS.
"""

from __future__ import annotations

import json
import os
import subprocess
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


def ask() -> None:
    """The other ranks wait meanwhile, so that nothing changes."""
    for name, words in (("explain", ["explain"]), ("top", ["top", "--once"]),
                        ("json", ["top", "--json"])):  # fmt: skip
        command = [sys.executable, "-m", "horoacc.launcher.main", words[0], str(os.getpid())]
        with (folder / name).open("w") as told:
            subprocess.run([*command, *words[1:]], stdout=told, check=True)
    (folder / "metrics").write_text(json.dumps(hvd.metrics()))


model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
batch = torch.ones(2, 64)
look = (folder / "ask").exists()
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
        if look and hvd.counters()["autotune_trials"] > 0:  # all ranks know it at once
            if hvd.rank() == 0:
                ask()
                (folder / "end").touch()
            break
    if hvd.rank() == 0 and not look and winners.is_dir() and any(winners.glob("*.json")):
        (folder / "end").touch()
    seen = hvd.allreduce(torch.tensor([float((folder / "end").exists())]), name="e", op=hvd.Max)
    ended = bool(seen)
print("steps", steps)
