"""DistributedOptimizer: the ranks together train what one rank would, in every mode."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
import training
from paths import CONTROL_PATHS
from torch import nn
from training_reference import DOUBLE, close, reference, shares

import horoacc.torch as hvd
from horoacc.torch import gradient_hooks

pytestmark = [
    pytest.mark.ranks(2, 3, framework="horoacc.torch"),
    pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *CONTROL_PATHS]),
]


# The hooks in C++ serve the first two alone.
@pytest.mark.parametrize(
    ("arguments", "tolerance", "hooks"),
    [
        ({}, 1e-12, "native"),
        ({"gradient_predivide_factor": 2.0}, 1e-12, "native"),
        ({}, 1e-12, "python"),
        ({"gradient_predivide_factor": 2.0}, 1e-12, "python"),
        ({"groups": 2}, 1e-12, "python"),
        ({"groups": "lists"}, 1e-12, "python"),
        ({"num_groups": 3}, 1e-12, "python"),
        ({"compression": "fp16"}, 2e-3, "python"),
        ({"compression": "bf16"}, 1e-2, "python"),
        ({"sparse_as_dense": True}, 1e-12, "python"),
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
    simple = not ({"groups", "num_groups", "compression", "sparse_as_dense"} & set(given))
    create = gradient_hooks.create
    if hooks == "python" and simple:
        gradient_hooks.create = lambda *_: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            optimizer = training.wrapped(model, **given)
        assert (optimizer._gradients.native is not None) == (hooks == "native")
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


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_closure_is_reduced_each_time(search: str | None) -> None:
    """LBFGS ends its search by the loss and the gradients, and does so on all ranks at once."""
    x, y = training.data(16 * hvd.size(), DOUBLE)
    mine = slice(hvd.rank(), None, hvd.size())
    calls: list[float] = []

    def fit(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            calls.append(loss.item())
            return loss

        for _ in range(3):
            optimizer.step(closure)

    torch.manual_seed(0)
    model, alone = (nn.Linear(20, 4, dtype=DOUBLE) for _ in range(2))
    alone.load_state_dict(model.state_dict())
    arguments: dict[str, Any] = {"max_iter": 6, "line_search_fn": search}
    fit(alone, torch.optim.LBFGS(alone.parameters(), **arguments), x, y)
    in_one = len(calls)
    lbfgs = torch.optim.LBFGS(model.parameters(), **arguments)
    fit(model, hvd.DistributedOptimizer(lbfgs, model.named_parameters()), x[mine], y[mine])
    assert hvd.allgather_object(len(calls)) == [2 * in_one] * hvd.size()
    close(model, alone, 1e-8)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_loss_of_a_closure(op: str) -> None:
    """A step gives the loss of all ranks, reduced as the gradients are, in the closure's type."""
    layer = nn.Linear(1, 1)
    optimizer: Any = torch.optim.SGD(layer.parameters(), lr=0.0)
    optimizer = hvd.DistributedOptimizer(optimizer, op=getattr(hvd, op))
    mine = float(hvd.rank() + 1)
    whole = sum(range(1, hvd.size() + 1)) / (hvd.size() if op == "Average" else 1)
    for loss in (mine, torch.tensor(mine), torch.tensor([mine], dtype=torch.double)):
        got = optimizer.step(lambda loss=loss: loss)
        assert got == whole and type(got) is type(loss)
        if isinstance(loss, torch.Tensor):
            assert got.dtype == loss.dtype and got.shape == loss.shape
    for loss in (None, "text", torch.tensor(3), torch.zeros(2)):
        assert optimizer.step(lambda loss=loss: loss) is loss


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
