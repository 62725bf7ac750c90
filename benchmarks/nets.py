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


class _Decoder(nn.Module):
    """GPT-2 small's shape (Radford et al. 2019): 12 layers of width 768 with 12 heads."""

    def __init__(self, words: int = 50257, places: int = 1024, width: int = 768) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
        layer = nn.TransformerEncoderLayer(
            width, 12, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(
            layer, 12, nn.LayerNorm(width), enable_nested_tensor=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        y = self.body(self.words(x) + self.places.weight[:length], mask, is_causal=True)
        # The last layer shares the words' weights.
        return nn.functional.linear(y, self.words.weight).reshape(-1, self.words.num_embeddings)


@dataclass(frozen=True)
class _Text(Task):
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, self.classes, self.batch), torch.randint(
            0, self.classes, (self.batch[0] * self.batch[1],)
        )


class _Tiny(nn.Module):
    """Parameters that do next to nothing, one after the other."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(width)) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part
        return x


def gpt2() -> Task:
    """GPT-2 small's shape, one sequence of 16 words: 124 M parameters, little work."""
    return _Text(_Decoder(), (1, 16), 50257)


def tiny() -> Task:
    """2000 tensors of 64 numbers."""
    return Task(_Tiny(2000, 64), (4, 64), 64)


WIDE_NETS = {"gpt2": gpt2, "tiny": tiny}
"""Of which communication is most of a step."""
