"""A rank of HoroACC: horoacc_rank.py FOLDER elastic|plain. It trains until it is ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import horoacc.torch as hvd
from benchmarks.elastic_peers.task import Task

task = Task(Path(sys.argv[1]))
hvd.init()
optimizer = hvd.DistributedOptimizer(task.optimizer, named_parameters=task.model.named_parameters())


@hvd.elastic.run
def train(state: Any) -> None:
    epoch = hvd.elastic.epoch()
    while True:
        task.step(task.model, optimizer, state.batch)
        state.batch += 1
        task.log(epoch, state.batch, hvd.rank(), hvd.size())
        task.rest()
        state.check_host_updates()


def train_plainly() -> None:
    batch = 0
    while True:
        task.step(task.model, optimizer, batch)
        batch += 1
        task.log(0, batch, hvd.rank(), hvd.size())
        task.rest()


task.ready()
if sys.argv[2] == "plain":
    train_plainly()
train(hvd.elastic.TorchState(model=task.model, optimizer=optimizer, batch=0))
