"""What one rank makes of the batches of all, for optimizers on many ranks to be compared with."""

from __future__ import annotations

import torch
import training
from torch import nn

import horoacc.torch as hvd

DOUBLE = torch.float64


def reference(batches: int, samples: int, passes: int = 1) -> nn.Module:
    """What one rank makes of the whole batches, in float64."""
    model = training.network(dtype=DOUBLE)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = training.data(batches * samples * hvd.size(), DOUBLE)
    whole = samples * hvd.size()
    for step, (xs, ys) in enumerate(zip(x.split(whole), y.split(whole), strict=True)):
        if step % passes == 0:
            sgd.zero_grad()
        nn.functional.cross_entropy(model(xs), ys).backward()
        if step % passes == passes - 1:
            sgd.step()
    return model


def close(model: nn.Module, wanted: nn.Module, tolerance: float = 1e-12) -> None:
    for (name, got), value in zip(model.named_parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(
            got.double(), value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def wholes(count: int, samples: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of all ranks together."""
    x, y = training.data(count * samples * hvd.size(), DOUBLE)
    whole = samples * hvd.size()
    return list(zip(x.split(whole), y.split(whole), strict=True))


def shares(count: int, samples: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of each of them."""
    mine = slice(hvd.rank(), None, hvd.size())
    return [(x[mine], y[mine]) for x, y in wholes(count, samples)]
