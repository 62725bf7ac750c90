"""The three small networks of the training benchmark, with random data of their shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Task:
    """A network, and how a rank trains it."""

    model: nn.Module
    batch: tuple[int, ...]
    classes: int

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random inputs and labels."""
        return torch.randn(*self.batch), torch.randint(0, self.classes, (self.batch[0],))


class _Residual(nn.Module):
    """A basic block of He et al. 2015, with their parameter-free short cut for CIFAR."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self._stride = width // before
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, self._stride, 1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        if self._stride > 1:
            x = x[:, :, :: self._stride, :: self._stride]
            x = torch.cat([x, torch.zeros_like(x)], 1)
        return nn.functional.relu(x + y)


def mlp() -> Task:
    """1024-2048-2048-1000, batch 32."""
    model = nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1000)
    )
    return Task(model, (32, 1024), 1000)


def cnn() -> Task:
    """ResNet-20's shape for 32x32 images, batch 16."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width in (16, 32, 64):
        for _ in range(3):
            layers.append(_Residual(before, width))
            before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return Task(nn.Sequential(*layers), (16, 3, 32, 32), 10)


def deep() -> Task:
    """100 x Linear(64,64) and Linear(64,10), batch 32: many tensors, little work."""
    layers: list[Any] = [nn.Linear(64, 64) for _ in range(100)]
    return Task(nn.Sequential(*layers, nn.Linear(64, 10)), (32, 64), 10)


NETS = {"mlp": mlp, "cnn": cnn, "deep": deep}
