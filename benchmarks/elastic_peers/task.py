"""What the ranks of every system train, and what they log.

All ranks have the same batch, so that the weights after a number of steps do not depend on how many
ranks did them: the losses tell whether a step was lost or applied twice.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

FEATURES = 256
PAUSE = 0.005
HURRY = "hurry"
"""While a file of this name is in the folder there are no pauses: this tells what a step costs."""


class Task:
    """A small network in training."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU(), torch.nn.Linear(FEATURES, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self._inputs = torch.ones(8, FEATURES)
        self._folder = folder
        self._hurry = folder / HURRY
        self._begun = 0
        self.loss = 0.0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._log = os.open(folder / f"steps.{os.getpid()}", flags)

    def ready(self) -> None:
        """Tells the driver that this process could take part."""
        (self._folder / f"ready.{os.getpid()}").touch()

    def step(self, model: Any, optimizer: Any, batch: int) -> None:
        """Does a step with the batch of that number; the system may have wrapped the others."""
        self._begun += 1
        optimizer.zero_grad()
        errors = model(self._inputs * math.cos(batch)) - math.sin(batch)
        loss = errors.square().mean()
        loss.backward()
        optimizer.step()
        self.loss = loss.item()

    def log(self, epoch: int, batch: int, rank: int, size: int) -> None:
        """Notes a step that was completed: it was the one number `batch`, counted from 1."""
        line = f"{epoch} {batch} {rank} {size} {time.monotonic():.6f} {self._begun} {self.loss!r}\n"
        os.write(self._log, line.encode())

    def rest(self) -> None:
        """What stands for the work of a larger model."""
        if not self._hurry.exists():
            time.sleep(PAUSE)
