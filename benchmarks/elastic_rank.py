"""A rank of the elastic benchmark: elastic_rank.py FOLDER PAUSE [STEPS]. It trains until its end.

With STEPS it ends by itself, and runs in jobs of fixed ranks as well, there without a state.

Each step is a line in FOLDER/steps.WORKER: epoch, batch, rank, size, the clock, and of the third
of each epoch the process's own memory in KiB, its open files and its threads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import horoacc.torch as hvd

FOLDER, PAUSE = Path(sys.argv[1]), float(sys.argv[2])
STEPS = int(sys.argv[3]) if sys.argv[3:] else sys.maxsize
FIXED = "HOROACC_COORDINATOR" not in os.environ
FEATURES = 256
CHECKS = 100


def memory() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0])  # what the process has for itself


torch.set_num_threads(1)
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU(),
                            torch.nn.Linear(FEATURES, 1))  # fmt: skip
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
    named_parameters=model.named_parameters(),
)
worker = os.environ.get("HOROACC_WORKER", hvd.rank())
log = os.open(FOLDER / f"steps.{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def train(state: Any) -> None:
    epoch, begun = hvd.elastic.epoch(), state.batch
    while state.batch < STEPS:
        inputs = torch.ones(8, FEATURES)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        state.batch += 1
        line = f"{epoch} {state.batch} {hvd.rank()} {hvd.size()} {time.monotonic():.6f}"
        if state.batch == begun + 3:
            files = len(os.listdir("/proc/self/fd"))
            line += f" {memory()} {files} {threading.active_count()}"
        os.write(log, line.encode() + b"\n")
        if PAUSE:
            time.sleep(PAUSE)
        if FIXED:
            continue
        state.check_host_updates()
        if state.batch % 100 == 0:  # on all ranks
            began = time.perf_counter()
            for _ in range(CHECKS):
                state.check_host_updates()
            with open(FOLDER / "checks", "a") as checks:
                checks.write(f"{1e6 * (time.perf_counter() - began) / CHECKS:.2f}\n")


if FIXED:
    train(SimpleNamespace(batch=0))
else:
    hvd.elastic.run(train)(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
