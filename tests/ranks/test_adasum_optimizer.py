"""DistributedOptimizer with Adasum: local steps, combined as the formula says."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from test_adasum import adasum
from torch import nn

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")
DOUBLE = torch.float64
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.5, max_iter=3),
}


def network() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).to(DOUBLE)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(7, 6, generator=generator, dtype=DOUBLE)
    return x, torch.randn(7, 2, generator=generator, dtype=DOUBLE)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return nn.functional.mse_loss(model(x), y)


def take_step(model: nn.Module, optimizer: Any, rank: int, step: int, passes: int = 1) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=DOUBLE)
        for part in range(passes):
            loss = loss_of(model, rank, passes * step + part)
            loss.backward()
            total += loss.detach()
        return total

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def simulate(make: Any, steps: int, passes: int = 1) -> nn.Module:
    """All ranks in one process: each steps from the common parameters, the changes are combined."""
    models = [network() for _ in range(hvd.size())]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        starts = [param.detach().clone() for param in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            take_step(model, optimizer, rank, step, passes)
        for k, start in enumerate(starts):
            ranks = [list(model.parameters())[k] for model in models]
            deltas = [(param.detach() - start).numpy() for param in ranks]
            moved = start + torch.from_numpy(adasum(deltas))
            for param in ranks:
                param.data.copy_(moved)
    return models[0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("arguments", [{}, {"groups": 2}, {"backward_passes_per_step": 2}], ids=str)
def test_combines_steps(kind: str, arguments: dict[str, Any]) -> None:
    passes = arguments.get("backward_passes_per_step", 1)
    model = network()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](model.parameters()), model.named_parameters(), op=hvd.Adasum, **arguments
    )
    assert type(optimizer).__name__ == kind.split()[0]
    for step in range(3):
        take_step(model, optimizer, hvd.rank(), step, passes)
    wanted = simulate(OPTIMIZERS[kind], 3, passes)
    # Adam's first steps are signs: they cancel but for 1e-8, which leaves half of the digits.
    tolerance = 1e-5 if kind == "Adam" else 1e-9
    for got, value in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(got, value, rtol=tolerance, atol=tolerance / 100)


def test_compressed_steps() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["SGD"](model.parameters()), model.named_parameters(), op=hvd.Adasum,
        compression=hvd.Compression.fp16,
    )  # fmt: skip
    for step in range(3):
        take_step(model, optimizer, hvd.rank(), step)
    for got, value in zip(
        model.parameters(), simulate(OPTIMIZERS["SGD"], 3).parameters(), strict=True
    ):
        torch.testing.assert_close(got, value, rtol=2e-2, atol=2e-3)


def test_a_parameter_without_gradient_on_one_rank() -> None:
    param = nn.Parameter(torch.ones(3, dtype=DOUBLE))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=0.5), [("p", param)], op=hvd.Adasum
    )
    if hvd.rank() == hvd.size() - 1:
        (param * torch.tensor([1.0, 2.0, 4.0])).sum().backward()
    optimizer.step()
    # Zeros leave the only step as it is.
    assert param.tolist() == [0.5, 0.0, -1.0]


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_agrees_about_overflow(fused: bool) -> None:
    model = network().float()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1, fused=fused), model.named_parameters(),
        op=hvd.Adasum,
    )  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    before = copy.deepcopy(model.state_dict())
    for step in range(2):
        optimizer.zero_grad()
        bad = step == 0 and hvd.rank() == hvd.size() - 1
        loss = model(torch.ones(2, 6)).square().sum() * (float("inf") if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert same == (step == 0), "every rank skips the step in which one overflows"
    assert scaler.get_scale() == 8.0


@pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")
def test_ways_and_limits() -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Adasum)
    assert isinstance(optimizer, torch.optim.SGD)
    loss_of(model, 0, 0).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        loss_of(model, 0, 1).backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    with pytest.raises(AssertionError, match="Skipping synchronization"):
        optimizer.skip_synchronize()
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    for wrong, words in (
        ({"gradient_predivide_factor": 2.0}, "predivide"),
        ({"compression": hvd.Compression.int8}, "Int8Compressor"),
        ({"backward_passes_per_step": 0}, "positive"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(
                torch.optim.SGD(network().parameters(), lr=0.1), op=hvd.Adasum, **wrong
            )
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.broadcast_optimizer_state(optimizer, 0)


@pytest.mark.ranks(3, framework="horoacc.torch")
def test_process_set_trains_alone() -> None:
    members = hvd.add_process_set([0, 1])
    param = nn.Parameter(torch.zeros(2, dtype=DOUBLE))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), [("p", param)], op=hvd.Adasum, process_set=members
    )
    slope = torch.eye(3, 2, dtype=DOUBLE)[hvd.rank()]
    (param * slope).sum().backward()
    optimizer.step()
    assert param.tolist() == ([-1.0, -1.0] if members.included() else [0.0, 0.0])
    hvd.remove_process_set(members)
