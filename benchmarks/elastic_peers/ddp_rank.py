"""A rank under torchrun: ddp_rank.py FOLDER EVERY. It trains with DDP over Gloo until it is ended.

Every so many steps rank 0 writes a checkpoint, from which a restarted group goes on; with 0 it
writes none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.elastic_peers.task import Task


def save(task: Task, path: Path, batch: int) -> None:
    """Writes a checkpoint, so that a kill leaves the one before or this one."""
    part = path.with_suffix(".part")
    state = {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}
    torch.save({**state, "batch": batch}, part)
    part.replace(path)


def main(folder: Path, every: int) -> None:
    task = Task(folder)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    epoch = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path, batch = folder / "checkpoint", 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        task.model.load_state_dict(saved["model"])
        task.optimizer.load_state_dict(saved["optimizer"])
        batch = saved["batch"]
    model = torch.nn.parallel.DistributedDataParallel(task.model, gradient_as_bucket_view=True)
    task.ready()
    while True:
        task.step(model, task.optimizer, batch)
        batch += 1
        task.log(epoch, batch, rank, size)
        if every and rank == 0 and batch % every == 0:
            save(task, path, batch)
        task.rest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
