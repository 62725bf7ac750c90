"""DistributedOptimizer, argument by argument and method by method, against closed forms."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")


def slopes() -> list[torch.Tensor]:
    """Every rank's gradient of `linear`."""
    return [torch.tensor([1.0, -2.0, 4.0]) * (rank + 1) for rank in range(hvd.size())]


def linear(param: torch.Tensor) -> torch.Tensor:
    return (param * slopes()[hvd.rank()].to(param.dtype)).sum()


def distributed(**arguments: Any) -> tuple[nn.Parameter, Any]:
    param = nn.Parameter(torch.zeros(3))
    arguments.setdefault("named_parameters", [("p", param)])
    return param, hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), **arguments)


def moved(param: nn.Parameter, by: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(param.data, -by, rtol=tolerance, atol=tolerance)


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_every_argument() -> None:
    whole = torch.stack(slopes())
    mean, total = whole.mean(0), whole.sum(0)
    cases: list[tuple[dict[str, Any], torch.Tensor, float]] = [
        ({}, mean, 1e-6),
        ({"named_parameters": None}, mean, 1e-6),
        ({"compression": hvd.Compression.fp16}, mean, 1e-3),
        ({"compression": hvd.Compression.int8}, mean, 2e-2),
        ({"op": hvd.Sum}, total, 1e-6),
        ({"op": hvd.Max}, whole.max(0).values, 1e-6),
        ({"gradient_predivide_factor": float(hvd.size())}, mean, 1e-6),
        ({"groups": 1}, mean, 1e-6),
        ({"num_groups": 1}, mean, 1e-6),
        ({"sparse_as_dense": True}, mean, 1e-6),
        ({"process_set": hvd.global_process_set}, mean, 1e-6),
    ]
    for arguments, wanted, tolerance in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            param, optimizer = distributed(**arguments)
        assert type(optimizer).__name__ == "SGD"
        linear(param).backward()
        optimizer.step()
        moved(param, wanted, tolerance)
    param, optimizer = distributed(backward_passes_per_step=2)
    for _ in range(2):
        linear(param).backward()
    optimizer.step()
    moved(param, 2 * mean)
    for wrong in ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, {"groups": -1},
                  {"backward_passes_per_step": 0}, {"named_parameters": [("q", param)]},
                  {"named_parameters": [("p", param), ("p", param)]}):  # fmt: skip
        with pytest.raises(ValueError):
            distributed(**wrong)


def test_synchronize_and_skip_synchronize() -> None:
    param, optimizer = distributed()
    linear(param).backward()
    optimizer.synchronize()
    mean = torch.stack(slopes()).mean(0)
    assert param.grad is not None
    torch.testing.assert_close(param.grad, mean)
    param.grad.clamp_(max=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with optimizer.skip_synchronize():
            optimizer.step()
    moved(param, mean.clamp(max=0.5))
    optimizer.zero_grad()
    linear(param).backward()
    optimizer.synchronize()
    if hvd.size() > 1:
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            for _ in range(2):
                linear(param).backward()
        optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def test_step_with_closure() -> None:
    param, optimizer = distributed()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = linear(param) + 7.0
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 7.0
    mean = torch.stack(slopes()).mean(0)
    moved(param, mean)
    optimizer.step(closure=closure)
    moved(param, 2 * mean)

    def failing() -> torch.Tensor:
        raise KeyError("no batch")

    with pytest.raises(KeyError, match="no batch"):
        optimizer.step(failing)
    hvd.barrier()


def test_zero_grad() -> None:
    param, optimizer = distributed()
    linear(param).backward()
    if hvd.size() > 1:
        with pytest.raises(AssertionError, match="race condition"):
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert param.grad is not None
    assert param.grad.tolist() == [0.0] * 3
    optimizer.zero_grad()
    assert param.grad is None


def test_set_backward_passes_per_step() -> None:
    param, optimizer = distributed()
    optimizer.set_backward_passes_per_step(3)
    assert optimizer.backward_passes_per_step == 3
    for _ in range(3):
        linear(param).backward()
    optimizer.step()
    moved(param, 3 * torch.stack(slopes()).mean(0))
    for wrong in (0, -1, "2"):
        with pytest.raises(ValueError, match="positive integer"):
            optimizer.set_backward_passes_per_step(wrong)


def test_load_state_dict() -> None:
    param, optimizer = distributed()
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    linear(param).backward()
    optimizer.load_state_dict(saved)  # what is in flight lands first
    optimizer.zero_grad()
    linear(param).backward()
    optimizer.step()
    moved(param, 0.5 * torch.stack(slopes()).mean(0))
    with pytest.raises(ValueError, match="param"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})


def test_find_duplicates() -> None:
    _, optimizer = distributed()
    assert optimizer.find_duplicates([1, 2, 1, 3, 2]) == {1, 2}
    assert optimizer.find_duplicates([]) == set()
    with pytest.raises(TypeError):
        optimizer.find_duplicates(3)


class Mixed(nn.Module):
    """Matrices, which Muon takes, and vectors, which it rejects."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.one, self.two = nn.Linear(6, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))

    def split(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        params = list(self.parameters())
        return [p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2]


@pytest.mark.parametrize("by", ["models", "optimizers"])
def test_optimizers_that_reject_parameters(by: str) -> None:
    """Muon for matrices beside AdamW for the rest; the names are the whole model's."""
    with pytest.raises(ValueError, match="2D"):
        torch.optim.Muon(Mixed().parameters(), lr=0.1)
    model, alone = Mixed(), Mixed()

    def both(of: Mixed) -> list[Any]:
        matrices, vectors = of.split()
        return [torch.optim.Muon(matrices, lr=0.05), torch.optim.AdamW(vectors, lr=0.05)]

    named = list(model.named_parameters())
    optimizers = []
    for optimizer in both(model):
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        names = named if by == "models" else [(n, p) for n, p in named if id(p) in owned]
        optimizers.append(hvd.DistributedOptimizer(optimizer, names))
    assert [type(one).__name__ for one in optimizers] == ["Muon", "AdamW"]
    x = torch.randn(4 * hvd.size(), 6, dtype=torch.float64,
                    generator=torch.Generator().manual_seed(1))  # fmt: skip
    references = both(alone)
    for _ in range(3):
        for one in [*optimizers, *references]:
            one.zero_grad()
        model(x[4 * hvd.rank() :][:4]).square().mean().backward()
        alone(x).square().mean().backward()
        for one in [*optimizers, *references]:
            one.step()
    # Muon orthogonalises in bfloat16, which makes a lot of the last bits of a gradient.
    for got, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    """Mixed precision with a scaler, clipping and no synchronize()."""
    model, alone = Mixed().float(), Mixed().float()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1)
    x = torch.randn(4 * hvd.size(), 6, generator=torch.Generator().manual_seed(1))
    mine = x[4 * hvd.rank() :][:4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stepper, network, batch in ((optimizer, model, mine), (sgd, alone, x)):
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            for _ in range(3):
                stepper.zero_grad()
                with torch.autocast("cpu", dtype=dtype):
                    loss = network(batch).float().square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(stepper)
                norm = nn.utils.clip_grad_norm_(network.parameters(), 0.05)
                assert norm > 0.05
                scaler.step(stepper)
                scaler.update()
    for got, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=2e-3)
