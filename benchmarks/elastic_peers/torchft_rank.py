"""A replica group of one rank, or the lighthouse: torchft_rank.py FOLDER SETTINGS [NUMBER ADDRESS].

It runs in an environment that has torchft; SETTINGS is the JSON of `jobs.TORCHFT`.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from benchmarks.elastic_peers.task import Task


class _Group(ProcessGroupGloo):  # type: ignore[misc]
    """Remembers which quorum it was made for."""

    epoch = 0

    def configure(self, *arguments: Any, **named: Any) -> None:
        self.epoch = arguments[4]
        super().configure(*arguments, **named)


class _Optimizer(Optimizer):  # type: ignore[misc]
    """Averages the gradients, which lie in one buffer, and remembers if the step was applied.

    torchft's DistributedDataParallel would do the first, but its hook fails with an assertion where
    an allreduce has failed, and so ends the ranks that live.
    """

    applied = False

    def __init__(self, manager: Any, optimizer: torch.optim.Optimizer, group: _Group) -> None:
        super().__init__(manager, optimizer)
        self._group = group
        parameters = optimizer.param_groups[0]["params"]
        self._gradients = torch.zeros(sum(one.numel() for one in parameters))
        parts = torch.split(self._gradients, [one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.grad = part.view_as(one)

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)

    def step(self, closure: object | None = None) -> None:
        if not self.manager.allreduce(self._gradients).wait():
            # Ranks that have no connection to the dead one learn of it at once, not after the time
            # limit of a collective.
            self._group.abort()
        self.applied = self.manager.should_commit()
        if self.applied:
            self.optim.step()


def light(folder: Path, settings: dict[str, Any]) -> None:
    """Coordinates the replica groups until it is ended."""
    server = LighthouseServer(bind="[::]:0", **settings["lighthouse"])
    part = folder / "lighthouse.part"
    part.write_text(server.address())
    part.replace(folder / "lighthouse")
    threading.Event().wait()


def train(folder: Path, settings: dict[str, Any], number: int, lighthouse: str) -> None:
    """Trains until it is ended."""
    task = Task(folder)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        task.model.load_state_dict(state["model"])
        task.optimizer.load_state_dict(state["optimizer"])

    def state() -> dict[str, Any]:
        return {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}

    seconds = {name: timedelta(seconds=value) for name, value in settings["seconds"].items()}
    group = _Group(timeout=seconds.pop("collective"))
    manager = Manager(
        pg=group, load_state_dict=load, state_dict=state, replica_id=f"replica_{number}", rank=0,
        world_size=1, store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse,
        **settings["manager"], **seconds,
    )  # fmt: skip
    optimizer = _Optimizer(manager, task.optimizer, group)
    task.ready()
    while True:
        task.step(task.model, optimizer, manager.current_step())
        batch = manager.current_step()
        if optimizer.applied:
            rank = manager.participating_rank()  # None: it has just got the weights of another
            rank = -1 if rank is None else rank
            task.log(group.epoch, batch, rank, manager.num_participants())
        task.rest()


if __name__ == "__main__":
    where, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    if len(sys.argv) == 3:
        light(where, given)
    train(where, given, int(sys.argv[3]), sys.argv[4])
