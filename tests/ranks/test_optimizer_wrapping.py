"""What DistributedOptimizer makes of an optimizer: its class, its state, its parameters' hooks."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import training
from paths import CONTROL_PATHS
from training_reference import DOUBLE, shares

import horoacc.torch as hvd

pytestmark = [
    pytest.mark.ranks(2, 3, framework="horoacc.torch"),
    pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *CONTROL_PATHS]),
]


def test_wrapping_keeps_the_optimizer() -> None:
    model = training.network()
    adam = torch.optim.Adam(model.parameters(), lr=0.25)
    decay = torch.optim.lr_scheduler.StepLR(adam, step_size=1, gamma=0.5)
    model(torch.ones(1, 20)).sum().backward()
    adam.step()
    optimizer: Any = hvd.DistributedOptimizer(adam, model.named_parameters())
    assert type(optimizer).__name__ == "Adam"
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.state, "the state was lost"
    training.steps(model, optimizer, training.own_batches(1))
    decay.step()
    assert optimizer.param_groups[0]["lr"] == 0.125
    later = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    training.steps(model, optimizer, training.own_batches(1))
    later.step()
    assert optimizer.param_groups[0]["lr"] < 0.125
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


def test_arguments_that_make_no_sense() -> None:
    model = training.network()
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, words in (
        ({"named_parameters": [*named[1:], (named[1][0], named[0][1])]}, "unique"),
        ({"named_parameters": named[1:]}, "not named"),
        ({"named_parameters": [p for _, p in named]}, "sequence of tuples"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "predivide"),
        ({"groups": -1}, "non-negative"),
        ({"groups": [named[0][1]]}, "list of lists"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "disjoint"),
        ({"backward_passes_per_step": 0}, "positive"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(sgd, **wrong)
    assert hvd.DistributedOptimizer(sgd).find_duplicates(["a", "b", "a"]) == {"a"}


@pytest.mark.parametrize("arguments", [{}, {"groups": 2}], ids=str)
def test_a_later_optimizer_takes_over_the_parameters(arguments: dict[str, Any]) -> None:
    model = training.network(dtype=DOUBLE)
    first = training.wrapped(model, **arguments)
    training.steps(model, first, shares(1))
    second = training.wrapped(model)
    training.steps(model, second, shares(2))
    del first
    training.steps(model, second, shares(2))
    training.finish(model)


def test_forked_child_computes_but_does_not_reduce() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    batches = training.own_batches(3)
    training.steps(model, optimizer, batches[:1])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            training.steps(model, optimizer, batches[1:2])
        except hvd.HorovodInternalError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    training.steps(model, optimizer, batches[1:])
    training.finish(model)


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@pytest.mark.parametrize("how", ["loaded", "broadcast", "broadcast to the wrapped one"])
def test_a_state_that_comes_leaves_groups_in_their_place(how: str, op: str) -> None:
    """A scheduler knows the optimizer that was wrapped, and parameters may still be added."""
    model, more = training.network(), torch.nn.Linear(20, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
    optimizer: Any = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=getattr(hvd, op))
    training.steps(model, optimizer, training.own_batches(1))
    if how == "loaded":
        optimizer.load_state_dict(optimizer.state_dict())
    else:
        hvd.broadcast_optimizer_state(optimizer if how == "broadcast" else sgd, 0)
    assert optimizer.state is sgd.state and len(sgd.state) == len(list(model.parameters()))
    scheduler.step()
    assert hvd.allgather_object(optimizer.param_groups[0]["lr"]) == [0.05] * hvd.size()
    hvd.broadcast_parameters(more.state_dict(), 0)
    optimizer.add_param_group({"params": list(more.parameters())})
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.full((2, 20), hvd.rank() + 1.0)
        (model(x).sum() + more(x).sum()).backward()
        optimizer.step()
    sums = [float(p.sum()) for p in (*model.parameters(), *more.parameters())]
    assert len({tuple(found) for found in hvd.allgather_object(sums)}) == 1


def test_states_are_broadcast_from_the_root() -> None:
    root = hvd.size() - 1
    model = training.network(seed=hvd.rank())
    adam = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1), amsgrad=True)
    if hvd.rank() == root:
        for _ in range(3):
            model(torch.ones(2, 20)).sum().backward()
            adam.step()
    hvd.broadcast_parameters(model.state_dict(), root)
    optimizer: Any = hvd.DistributedOptimizer(adam, model.named_parameters())
    assert optimizer._parameter_names == {p: name for name, p in model.named_parameters()}
    hvd.broadcast_optimizer_state(optimizer, root)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * hvd.size())
    assert optimizer.param_groups[0]["amsgrad"]
    state = optimizer.state_dict()["state"]
    assert len(state) == len(list(model.parameters()))
    sums = [float(value["exp_avg_sq"].sum()) for value in state.values()]
    assert len({tuple(found) for found in hvd.allgather_object(sums)}) == 1
    training.steps(model, optimizer, training.own_batches(2))
    training.finish(model)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters((p for p in model.parameters()), 0)
