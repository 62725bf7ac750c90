"""What ranks do in the tests of Ray. They import this module by its name."""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import horoacc as hvd


def place() -> dict[str, Any]:
    """Where a rank is, and that it reaches the others."""
    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)
    return {
        "rank": hvd.rank(), "size": int(total[0]), "local_rank": hvd.local_rank(),
        "local_size": hvd.local_size(), "cross": (hvd.cross_rank(), hvd.cross_size()),
        "host": os.environ["HOROVOD_HOSTNAME"], "pid": os.getpid(),
    }  # fmt: skip


def scaled(factor: int, *, offset: int = 0) -> int:
    hvd.init()
    return hvd.rank() * factor + offset


def program(*words: str) -> None:
    """Runs a file of Python's with its arguments."""
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")


class Counter:
    """An executable."""

    def __init__(self, start: int, step: int = 1) -> None:
        hvd.init()
        self.value = start + hvd.rank()
        self.step = step

    def next(self) -> int:
        self.value += self.step
        return self.value


def in_turns(path: str) -> int:
    """Steps until the job ends, and tells when it has begun."""
    hvd.init()
    for step in range(1_000_000):
        hvd.allreduce(np.ones(4), name="step")
        if step == 10 and hvd.rank() == 0:
            Path(path).touch()
        time.sleep(0.002)
    return hvd.rank()


def raised_by(rank: int) -> None:
    """One raises, while the others wait for it."""
    hvd.init()
    if hvd.rank() == rank:
        raise LookupError(f"rank {rank} found nothing")
    hvd.allreduce(np.ones(4))


def elastic_steps(log: str, over: str) -> dict[str, Any]:
    """Trains, and notes each step that this rank has completed, until there is a file `over`.

    The gradients, the only collectives, also carry whether a rank has seen that file.
    """
    import torch

    import horoacc.torch as hvd
    from horoacc.ray import ray_logger

    hvd.init()
    ray_logger.log({"started": os.getpid()}, chief_only=False)
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )

    @hvd.elastic.run
    def train(state: Any) -> None:
        while model.weight[0, 1] == 0:
            optimizer.zero_grad()
            model(torch.tensor([[1.0, float(os.path.exists(over))]])).sum().backward()
            optimizer.step()
            state.step += 1
            note = {
                "time": time.time(), "step": state.step, "rank": hvd.rank(), "size": hvd.size(),
                "pid": os.getpid(), "agent": os.getppid(), "epoch": hvd.elastic.epoch(),
                "host": os.environ["HOROVOD_HOSTNAME"],
            }  # fmt: skip
            with open(log, "a") as file:
                file.write(json.dumps(note) + "\n")
            time.sleep(0.01)
            state.check_host_updates()
        ray_logger.log({"finished": state.step})

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    train(state)
    return {"rank": hvd.rank(), "size": hvd.size(), "weight": model.weight[0, 0].item(),
            "steps": float(state.step), "host": os.environ["HOROVOD_HOSTNAME"]}  # fmt: skip


def trained(*_: Any) -> int:
    """A step of a model with PyTorch."""
    import torch

    import horoacc.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(torch.randn(32, 2)), torch.randint(0, 2, (32,))
        ).backward()
        optimizer.step()
    return hvd.local_rank()


def hostname(*_: Any) -> str:
    return socket.gethostname()
