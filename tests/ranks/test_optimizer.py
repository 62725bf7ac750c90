"""DistributedOptimizer: the ranks together train what one rank would, in every mode."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import pytest
import torch
import training
from paths import CONTROL_PATHS
from torch import nn

import horoacc.torch as hvd
from horoacc.torch import gradient_hooks

pytestmark = [
    pytest.mark.ranks(2, 3, framework="horoacc.torch"),
    pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *CONTROL_PATHS]),
]
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


def shares(count: int, samples: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = training.data(count * samples * hvd.size(), DOUBLE)
    whole = samples * hvd.size()
    mine = slice(hvd.rank(), None, hvd.size())
    return [(xs[mine], ys[mine]) for xs, ys in zip(x.split(whole), y.split(whole), strict=True)]


@pytest.mark.parametrize("hooks", ["native", "python"])
@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        ({}, 1e-12),
        ({"gradient_predivide_factor": 2.0}, 1e-12),
        ({"groups": 2}, 1e-12),
        ({"groups": "lists"}, 1e-12),
        ({"num_groups": 3}, 1e-12),
        ({"compression": "fp16"}, 2e-3),
        ({"compression": "bf16"}, 1e-2),
        ({"sparse_as_dense": True}, 1e-12),
    ],
    ids=str,
)
def test_same_as_one_rank(arguments: dict[str, Any], tolerance: float, hooks: str) -> None:
    model = training.network(dtype=DOUBLE)
    given = dict(arguments)
    if "compression" in given:
        given["compression"] = getattr(hvd.Compression, given["compression"])
    if given.get("groups") == "lists":
        params = list(model.parameters())
        given["groups"] = [params[:2], params[3:5]]
    create = gradient_hooks.create
    if hooks == "python":
        gradient_hooks.create = lambda *_: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            optimizer = training.wrapped(model, **given)
        simple = not ({"groups", "num_groups", "compression", "sparse_as_dense"} & set(given))
        assert (optimizer._gradients.native is not None) == (hooks == "native" and simple)
        training.steps(model, optimizer, shares(5))
    finally:
        gradient_hooks.create = create
    close(model, reference(5, 8), tolerance)


@pytest.mark.parametrize("set_late", [False, True])
def test_accumulates_over_passes(set_late: bool) -> None:
    model = training.network(dtype=DOUBLE)
    optimizer = training.wrapped(model, backward_passes_per_step=1 if set_late else 2)
    if set_late:
        optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    before = hvd.counters()["submissions"]
    for step, (x, y) in enumerate(shares(6)):
        if step % 2 == 0:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if step % 2 == 1:
            optimizer.step()
    count = len(list(model.parameters()))
    assert hvd.counters()["submissions"] - before == 3 * count
    close(model, reference(6, 8, passes=2))


@pytest.mark.ranks(2, framework="horoacc.torch", env={"HOROACC_FUSION_THRESHOLD": "4096"})
def test_first_bucket_runs_before_the_last_gradient_is_queued() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    ran = []
    begun = 0

    def hold(grad: torch.Tensor) -> None:
        # The first layer's gradient is computed last; it waits here until a bucket was reduced.
        deadline = time.monotonic() + 20
        while hvd.counters()["buckets"] == begun and time.monotonic() < deadline:
            time.sleep(0.001)
        ran.append(hvd.counters()["buckets"] > begun)

    next(model.parameters()).register_hook(hold)
    for batch in training.own_batches(3):
        begun = hvd.counters()["buckets"]
        training.steps(model, optimizer, [batch])
    assert ran == [True, True, True]


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


def test_closure_is_reduced_each_time() -> None:
    x, y = training.data(16 * hvd.size(), DOUBLE)
    mine = slice(hvd.rank(), None, hvd.size())

    def fit(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return hvd.allreduce(loss.detach(), name="loss") if hvd_closure else loss

        for _ in range(3):
            optimizer.step(closure)

    torch.manual_seed(0)
    model, alone = (nn.Linear(20, 4, dtype=DOUBLE) for _ in range(2))
    alone.load_state_dict(model.state_dict())
    hvd_closure = False
    fit(alone, torch.optim.LBFGS(alone.parameters(), max_iter=4), x, y)
    hvd_closure = True
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)
    fit(model, hvd.DistributedOptimizer(lbfgs, model.named_parameters()), x[mine], y[mine])
    close(model, alone, 1e-8)


def test_parameter_without_gradient_on_one_rank() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(3, 1)
            self.right = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.left(x) if hvd.rank() == 0 else self.left(x) + self.right(x)

    torch.manual_seed(1)
    model = Two()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
    )
    before = model.right.bias.item()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert model.right.bias.item() == pytest.approx(before - 2 * (hvd.size() - 1), abs=1e-5)
    training.finish(model)


@pytest.mark.parametrize("dense", [False, True])
def test_sparse_gradients(dense: bool) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.EmbeddingBag(50, 6, sparse=True, mode="sum"), nn.Linear(6, 1))
    twin = nn.Sequential(nn.EmbeddingBag(50, 6, mode="sum"), nn.Linear(6, 1))
    twin.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(),
        sparse_as_dense=dense,
    )  # fmt: skip
    sgd = torch.optim.SGD(twin.parameters(), lr=0.5)
    words = torch.tensor([[rank, rank + 1, 7] for rank in range(hvd.size())])
    for _ in range(3):
        optimizer.zero_grad()
        model(words[hvd.rank()].view(1, -1)).sum().backward()
        optimizer.step()
        sgd.zero_grad()
        (twin(words).sum() / hvd.size()).backward()
        sgd.step()
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, wanted)


def test_channels_last_gradients() -> None:
    torch.manual_seed(4)
    model = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
    )
    before = model.weight.detach().clone()
    x = torch.full((1, 4, 5, 5), float(hvd.rank() + 1)).to(memory_format=torch.channels_last)
    model(x).sum().backward()
    optimizer.step()
    total = 9.0 * hvd.size() * (hvd.size() + 1) / 2
    torch.testing.assert_close(before - model.weight, torch.full_like(before, total))


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


@pytest.mark.ranks(3, framework="horoacc.torch")
def test_process_set_trains_alone() -> None:
    members = hvd.add_process_set([0, 1])
    torch.manual_seed(hvd.rank())
    model = training.network()
    optimizer = training.wrapped(model, process_set=members)
    x, y = training.own_batches(1)[0]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = hvd.allgather_object(training.bits(model))
    assert found[0] == found[1] != found[2]
    hvd.remove_process_set(members)
