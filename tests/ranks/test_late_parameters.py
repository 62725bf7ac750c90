"""Parameters that an optimizer begins to train after it was wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import training
from torch import nn
from training_reference import DOUBLE, close, shares, wholes

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(2, 3, framework="horoacc.torch")


def thaw(model: nn.Sequential, optimizer: Any) -> None:
    for param in model[0].parameters():
        param.requires_grad_(True)


def add_group(model: nn.Sequential, optimizer: Any) -> None:
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})


def fit(late: Any, batches: Any, wrap: Any) -> nn.Module:
    """Three steps without the first layer and three with it."""
    model: Any = training.network(dtype=DOUBLE)
    if late is thaw:
        for param in model[0].parameters():
            param.requires_grad_(False)
        trained: Any = model
    else:
        trained = model[1:]
    optimizer = wrap(torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9), trained)
    training.steps(model, optimizer, batches[:3])
    late(model, optimizer)
    training.steps(model, optimizer, batches[3:])
    return model


@pytest.mark.parametrize("late", [thaw, add_group])
@pytest.mark.parametrize("arguments", [{}, {"groups": 2}], ids=["hooks", "groups"])
def test_late_gradients_are_reduced(late: Any, arguments: dict[str, Any]) -> None:
    def wrap(optimizer: Any, trained: nn.Module) -> Any:
        names = trained.named_parameters()
        return hvd.DistributedOptimizer(optimizer, named_parameters=names, **arguments)

    model = fit(late, shares(6), wrap)
    alone = fit(late, wholes(6), lambda optimizer, _: optimizer)
    close(model, alone, 1e-12)
    training.finish(model)


@pytest.mark.parametrize("late", [thaw, add_group])
def test_late_steps_are_combined(late: Any) -> None:
    def wrap(optimizer: Any, _: nn.Module) -> Any:
        return hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)

    model = fit(late, shares(6), wrap)
    assert not torch.equal(model[0].weight, training.network(dtype=DOUBLE)[0].weight)  # type: ignore[index]
    training.finish(model)


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_a_group_that_is_refused(op: str) -> None:
    model = training.network()
    optimizer = training.wrapped(model, op=getattr(hvd, op))
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": list(model.parameters())[:1]})
    training.steps(model, optimizer, training.own_batches(2))
    training.finish(model)
