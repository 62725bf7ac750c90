"""Small training jobs that several tests compare, as functions that run in every rank."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import horoacc.torch as hvd


def network(seed: int = 3, width: int = 33, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A net whose gradients are small, odd-sized and larger than what travels inline."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 300), nn.ReLU(), nn.Linear(300, 400),
        nn.ReLU(), nn.Linear(400, 4),
    ).to(dtype)  # fmt: skip


def data(samples: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The same samples on every rank."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 20, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 4, (samples,), generator=generator)
    return x, y


def bits(model: nn.Module) -> str:
    """A hash of all parameters."""
    digest = hashlib.sha256()
    for _, value in sorted(model.state_dict().items()):
        digest.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def wrapped(model: nn.Module, **arguments: Any) -> Any:
    """SGD with momentum, distributed."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), **arguments)


def steps(
    model: nn.Module,
    optimizer: Any,
    batches: Any,
    before_step: Callable[[nn.Module, Any], None] | None = None,
) -> None:
    """Trains on an iterable of batches."""
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if before_step is not None:
            before_step(model, optimizer)
        optimizer.step()


def own_batches(count: int, samples: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of every batch."""
    x, y = data(count * samples * hvd.size())
    return [
        (xs[hvd.rank() :: hvd.size()], ys[hvd.rank() :: hvd.size()])
        for xs, ys in zip(x.split(samples * hvd.size()), y.split(samples * hvd.size()), strict=True)
    ]


def finish(model: nn.Module) -> tuple[str, int]:
    """What a job returns: the bits, equal on all ranks, and the bytes reduced in place."""
    found = hvd.allgather_object(bits(model))
    assert len(set(found)) == 1, "the ranks' parameters differ"
    return found[0], hvd.counters()["arena_bytes"]


def plain_job() -> tuple[str, int]:
    model = network()
    steps(model, wrapped(model), own_batches(6))
    return finish(model)


def job_that_replaces_gradients() -> tuple[str, int]:
    """`.grad` is another tensor when the reduction lands, and its old memory is used again."""
    model = network()

    def replace(model: nn.Module, _: Any) -> None:
        for param in model.parameters():
            assert param.grad is not None
            param.grad = param.grad.clone()
        junk = [torch.full_like(param, 1e9) for param in model.parameters()]
        del junk

    steps(model, wrapped(model), own_batches(6), replace)
    return finish(model)


def job_with_checkpoints() -> tuple[str, int]:
    """Model and optimizer are saved and loaded into new ones between the steps."""
    model = network()
    optimizer = wrapped(model)
    batches = own_batches(6)
    for batch in batches:
        steps(model, optimizer, [batch])
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        model = network(seed=99)
        optimizer = wrapped(model)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    return finish(model)


class Digits(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Computes samples in the worker, with allocations and a backward pass of its own."""

    def __init__(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.batches[index]
        weight = torch.ones(400, 300, requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        assert float(weight.grad.mean()) == 2.0
        return x * float(weight.grad.mean()) / 2.0, y


def job_with_forked_workers() -> tuple[str, int]:
    """Batches come from forked DataLoader workers, started while gradients lie in the arena."""
    model = network()
    optimizer = wrapped(model)
    batches = own_batches(6)
    steps(model, optimizer, batches[:2])
    loader = torch.utils.data.DataLoader(
        Digits(batches[2:]), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    steps(model, optimizer, loader)
    return finish(model)


JOBS = ["plain_job", "job_that_replaces_gradients", "job_with_checkpoints",
        "job_with_forked_workers"]  # fmt: skip


def large_job() -> tuple[str, int]:
    """One gradient alone is larger than a container's /dev/shm usually is."""
    torch.manual_seed(5)
    model = nn.Linear(5000, 4000)
    optimizer = wrapped(model)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 5000), 0.01 * (hvd.rank() + step + 1))).square().sum().backward()
        optimizer.step()
    return finish(model)
