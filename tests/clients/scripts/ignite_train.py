"""PyTorch Ignite on `gloo` or `horovod`; with `spawn` it starts its processes itself."""

from __future__ import annotations

import sys

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_trainer
from tiny import data, model
from told import BACKEND, tell
from torch import nn


def train(_local_rank: int) -> None:
    net = idist.auto_model(model())
    optimizer = idist.auto_optim(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    trainer = create_supervised_trainer(net, optimizer, nn.functional.cross_entropy)
    trainer.run(idist.auto_dataloader(data(), batch_size=16), max_epochs=2)
    assert idist.get_world_size() == 2
    tell(net.parameters(), idist.get_rank())


if __name__ == "__main__":
    own = {"nproc_per_node": 2} if "spawn" in sys.argv else {}
    with idist.Parallel(backend=BACKEND, **own) as parallel:
        parallel.run(train)
