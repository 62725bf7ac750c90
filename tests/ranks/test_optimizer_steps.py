"""DistributedOptimizer's step: synchronised by hand, clipped, scaled, and what is refused."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
import training
from paths import CONTROL_PATHS
from torch import nn
from training_reference import DOUBLE, close, reference, shares

import horoacc.torch as hvd
from horoacc.torch.changed_gradients import ChangedGradientError

pytestmark = [
    pytest.mark.ranks(2, 3, framework="horoacc.torch"),
    pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *CONTROL_PATHS]),
]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model = training.network(dtype=DOUBLE)
    optimizer = training.wrapped(model)
    for step, (x, y) in enumerate(shares(5)):
        optimizer.zero_grad(set_to_none=set_to_none)
        if step:
            assert all((param.grad is None) == set_to_none for param in model.parameters())
        nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(AssertionError, match="race condition"):
            optimizer.zero_grad()
        optimizer.step()
    close(model, reference(5, 8))


@pytest.mark.parametrize("passes", [1, 2])
def test_too_many_backward_passes(passes: int) -> None:
    model = training.network()
    optimizer = training.wrapped(model, backward_passes_per_step=passes)
    x, y = training.own_batches(1)[0]
    for _ in range(passes):
        nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    hvd.barrier()


def test_synchronize_then_step() -> None:
    model = training.network(dtype=DOUBLE)
    optimizer = training.wrapped(model)
    for x, y in shares(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        assert not caught
    close(model, reference(3, 8))
    nn.functional.cross_entropy(model(x), y).backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.synchronize()
        optimizer.step()
    assert len(caught) == 1
    assert "skip_synchronize" in str(caught[0].message)


def test_clipping_sees_reduced_gradients() -> None:
    model = training.network(dtype=DOUBLE)
    optimizer = training.wrapped(model)
    x, y = shares(1)[0]
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert len(set(hvd.allgather_object(float(norm)))) == 1
    with optimizer.skip_synchronize():
        optimizer.step()


@pytest.mark.parametrize("arguments", [{}, {"compression": hvd.Compression.fp16}], ids=str)
def test_gradients_that_are_changed_too_early(arguments: dict[str, Any]) -> None:
    model = training.network()
    optimizer = training.wrapped(model, **arguments)
    first = next(iter(model.parameters()))

    def step(early: bool) -> list[str]:
        optimizer.zero_grad()
        x, y = training.own_batches(1)[0]
        nn.functional.cross_entropy(model(x), y).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if early:
                first.grad.mul_(0.5)
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        return [str(warning.message) for warning in caught]

    name = {id(param): name for name, param in model.named_parameters()}[id(first)]
    assert step(False) == []
    (told,) = step(True)
    assert f"'{name}' was changed while it was being reduced" in told
    assert step(True) == step(False) == []
    os.environ["HOROACC_CHANGED_GRADIENTS"] = "raise"
    try:
        with pytest.raises(ChangedGradientError, match="skip_synchronize"):
            step(True)
    finally:
        del os.environ["HOROACC_CHANGED_GRADIENTS"]
    assert step(False) == []


def test_one_gradient_by_hand() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    first = next(iter(model.parameters()))
    first.grad = torch.full_like(first, float(hvd.rank()))
    handle, context = optimizer._allreduce_grad_async(first)
    assert hvd.synchronize(handle) is first.grad and context is None
    assert first.grad.eq((hvd.size() - 1) / 2).all()


@pytest.mark.parametrize("unscale", [False, True])
def test_grad_scaler_without_synchronize(unscale: bool) -> None:
    model = training.network(dtype=DOUBLE)
    optimizer = training.wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in shares(4):
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                total = sum(float(p.grad.abs().sum()) for p in model.parameters())
                assert len(set(hvd.allgather_object(total))) == 1
            scaler.step(optimizer)
            scaler.update()
    close(model, reference(4, 8))


def test_grad_scaler_agrees_about_overflow() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    before = training.bits(model)
    x, y = training.own_batches(1)[0]
    loss = nn.functional.cross_entropy(model(x), y)
    # Only one rank overflows; all must skip the step and lower the scale.
    scaler.scale(loss * (float("inf") if hvd.rank() == 0 else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert training.bits(model) == before
    assert set(hvd.allgather_object(scaler.get_scale())) == {8.0}
    training.steps(model, optimizer, training.own_batches(2))
    training.finish(model)
