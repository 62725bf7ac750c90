"""Tiny data and models, alike in all scripts and on all ranks."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset


def data() -> TensorDataset:
    """64 rows of 10 numbers, each of one of four classes."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(64, 10, generator=draw)
    return TensorDataset(x, (x @ torch.randn(10, 4, generator=draw)).argmax(1))


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
