"""Elastic states: what is committed, restored and shared."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch

import horoacc.torch as hvd
from horoacc import elastic
from horoacc.torch.elastic import state as torch_state


def both(*sizes: int) -> Any:
    return pytest.mark.ranks(*sizes, framework="horoacc.torch")


@both(1, 2, 3, 4)
def test_object_state_commits_restores_and_syncs() -> None:
    state = elastic.ObjectState(batch=hvd.rank(), history=[hvd.rank()])
    state.sync()
    assert (state.batch, state.history) == (0, [0])
    state.batch = 5
    state.history.append(5)
    state.restore()
    assert (state.batch, state.history) == (0, [0])
    state.batch = 6
    state.history.append(6)
    state.commit()
    state.history.append(7)
    state.restore()
    assert (state.batch, state.history, state.commits) == (6, [0, 6], 1)
    state.batch += hvd.rank()
    state.sync()
    state.restore()
    assert state.batch == 6
    with pytest.raises(AttributeError, match="epoch"):
        _ = state.epoch
    with pytest.raises(TypeError, match="pickle"):
        elastic.ObjectState(lock=threading.Lock())


@both(1)
def test_object_state_shows_what_it_was_given_itself() -> None:
    history: list[int] = []
    state = elastic.ObjectState(history=history)
    history.append(1)
    assert state.history is history
    state.restore()
    assert state.history == []


@both(1, 2, 3, 4)
def test_state_with_functions_of_ones_own() -> None:
    """Horovod's constructor, for a framework of one's own."""
    asked: list[Any] = []

    def told(value: Any) -> Any:
        asked.append(value)
        return {"x": 41}

    state = elastic.ObjectState(bcast_object=told, get_rank=lambda: 0, x=1)
    state.sync()
    assert state.x == 41 and asked == [{"x": 1}]
    with pytest.raises(NotImplementedError):
        elastic.State(told, lambda: 0).save()


def values_of(model: torch.nn.Module) -> list[Any]:
    return [value.detach().numpy().copy() for value in model.state_dict().values()]


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


@both(1, 2, 3, 4)
def test_torch_state(ranks: int) -> None:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + hvd.rank()), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, epoch=hvd.rank())
    assert state.model is model and state.optimizer is optimizer
    state.sync()
    everyone = hvd.allgather_object([values_of(model), optimizer.param_groups[0]["lr"]])
    for values, rate in everyone:
        assert rate == 0.1
        for mine, first in zip(values, everyone[0][0], strict=True):
            np.testing.assert_array_equal(mine, first)
    assert state.epoch == 0
    scheduler.step()
    assert hvd.allgather_object(optimizer.param_groups[0]["lr"]) == pytest.approx([0.01] * ranks)
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 0})
    step(model, optimizer)
    state.epoch = 1
    state.commit()
    kept = values_of(model), copy.deepcopy(optimizer.state_dict()["state"])
    step(model, optimizer)
    step(model, optimizer)
    scheduler.step()
    state.epoch = 2
    for _ in range(2):  # what is restored must not be what was saved: a step would change both
        state.restore()
        assert state.epoch == 1 and scheduler.last_epoch == 0
        for mine, saved in zip(values_of(model), kept[0], strict=True):
            np.testing.assert_array_equal(mine, saved)
        for index, entry in optimizer.state_dict()["state"].items():
            assert torch.equal(entry["momentum_buffer"], kept[1][index]["momentum_buffer"])
        step(model, optimizer)
    with pytest.raises(AttributeError, match="batch"):
        _ = state.batch
    # What a rank's model cannot take is an error there, and the others are told.
    other = hvd.elastic.TorchState(model=torch.nn.Linear(2 + hvd.rank() % 2, 1))
    if ranks > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            other.sync()


@both(1, 2, 3, 4)
def test_a_model_that_takes_anothers_place() -> None:
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    state = hvd.elastic.TorchState(model=first)
    state.model = second
    before = values_of(second)
    with torch.no_grad():
        second.weight.add_(1)
        first.weight.add_(1)
    changed = values_of(first)
    state.restore()
    np.testing.assert_array_equal(values_of(second)[0], before[0])
    np.testing.assert_array_equal(values_of(first)[0], changed[0])


class Counter:
    def __init__(self) -> None:
        self.count = hvd.rank()


class CounterHandler(torch_state.StateHandler):
    def save(self) -> None:
        self.saved = self.value.count

    def restore(self) -> None:
        self.value.count = self.saved

    def sync(self) -> None:
        self.value.count = hvd.broadcast_object(self.value.count)
        self.save()


@both(1, 2, 3, 4)
def test_handlers_of_ones_own() -> None:
    registry = hvd.elastic.state.get_handler_registry()
    hvd.elastic.state.set_handler_registry([(Counter, CounterHandler), *registry])
    try:
        counter = Counter()
        state = hvd.elastic.TorchState(counter=counter, model=torch.nn.Linear(1, 1))
    finally:
        hvd.elastic.state.set_handler_registry(registry)
    state.sync()
    assert state.counter is counter and counter.count == 0
    counter.count = 9
    state.restore()
    assert counter.count == 0
    with pytest.raises(NotImplementedError):
        torch_state.StateHandler(counter).save()
