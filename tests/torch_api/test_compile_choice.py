"""`optimize`: what it tries, what it refuses, what it keeps, and that it leaves no trace."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import horoacc.torch as hvd
from horoacc.torch import compile_choice, compile_trials

ABLE: list[str] = []
BACKENDS: dict[str, Callable[[Any], Callable[..., Any]]] = {}


def backend(name: str) -> Callable[[Any], Any]:
    """Registers a back end of torch.compile; from the graph to what is called instead."""

    def register(make: Any) -> Any:
        torch._dynamo.register_backend(lambda graph, inputs: make(graph), name=name)
        return make

    return register


@backend("same")
def same(graph: Any) -> Any:
    return graph.forward


@backend("off")
def off(graph: Any) -> Any:
    return lambda *inputs: tuple(
        out * 1.01 if out.is_floating_point() else out for out in graph(*inputs)
    )


@backend("unable")
def unable(graph: Any) -> Any:
    raise RuntimeError("this back end is unable\nas was to be expected")


@backend("unable_once")
def unable_once(graph: Any) -> Any:
    return graph.forward if ABLE else unable(graph)


@backend("unable_on_rank_1")
def unable_on_rank_1(graph: Any) -> Any:
    return unable(graph) if hvd.rank() == 1 else graph.forward


@backend("dies")
def dies(graph: Any) -> Any:
    def call(*inputs: Any) -> Any:
        raise RuntimeError("this back end dies")

    return call


class Net(nn.Module):
    """A buffer that each pass changes, numbers at random, a repeated block."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.linear = nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tanh(self.linear(x))

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.5)
        self.blocks = nn.ModuleList(self.Block(width) for _ in range(3))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = self.dropout(self.norm(x)) * scale
        for block in self.blocks:
            x = block(x)
        return x


class Detached(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines of the log; choices are kept in a folder of the test's own."""
    monkeypatch.setenv("HOROACC_CACHE_DIR", str(tmp_path))
    yield from listening()


def listening() -> Iterator[list[str]]:
    torch.compiler.reset()
    log, listener = logging.getLogger("horoacc.torch"), Listener()
    log.addHandler(listener)
    level = log.level
    log.setLevel(logging.INFO)
    yield listener.lines
    log.setLevel(level)
    log.removeHandler(listener)


def timed(monkeypatch: pytest.MonkeyPatch, taken: dict[str, Sequence[float]]) -> list[str]:
    """Samples take these times, in turn; the list of whose were taken."""
    turns: dict[str, int] = {}
    order: list[str] = []

    def seconds(way: Any, steps: Any, turn: int, repeats: int) -> float:
        name = "eager" if way is None else way.name
        order.append(name)
        turns[name] = turns.get(name, -1) + 1
        steps.run(turn)
        return taken[name][turns[name] % len(taken[name])]

    monkeypatch.setattr(compile_choice, "_seconds", seconds)
    return order


def is_compiled(model: nn.Module) -> bool:
    return model._compiled_call_impl is not None


def random_batch() -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("same_takes", "compiled"),
    [([0.9], True), ([1.0], False), ([1.1], False), ([0.5, 1.5], False), ([0.97, 0.98], True)],
    ids=["quicker", "equal", "slower", "uncertain", "a little quicker"],
)
def test_eager_stays_unless_the_interval_says_quicker(
    same_takes: list[float], compiled: bool, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = timed(monkeypatch, {"eager": [1.0], "same": same_takes})
    model = Net()
    assert hvd.optimize(model, random_batch(), backends=["same"], seconds=40) is model
    assert is_compiled(model) == compiled, told
    assert order.count("eager") == order.count("same") >= 12 + 2
    assert order[4:8] == ["eager", "same", "same", "eager"]  # in turns


def test_it_leaves_no_trace(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"eager": [1.0], "same": [0.5]})
    model = Net()
    model(random_batch()).sum().backward()
    model.blocks[0].linear.bias.grad = None
    hooks: list[int] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: hooks.append(1))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    seed = torch.get_rng_state()
    hvd.optimize(model, random_batch(), backends=["same"])
    assert is_compiled(model) and model.training and not hooks
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert p.grad is None if grad is None else torch.equal(p.grad, grad)
    assert torch.equal(torch.get_rng_state(), seed)
    model(random_batch()).sum().backward()
    assert hooks


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("off", "off by a norm of"),
        ("unable", "this back end is unable"),
        ("dies", "this back end dies"),
        ("unknown", "unknown"),
    ],
)
def test_a_back_end_that_fails_is_left_out(
    name: str, why: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {"eager": [1.0], name: [0.1], "same": [0.5]})
    model = hvd.optimize(Net(), random_batch(), backends=[name, "same"])
    (line,) = [line for line in told if line.startswith(f"{name} is left out")]
    assert why in line and "\n" not in line
    assert "the model runs by same" in told and is_compiled(model)


def test_a_choice_is_remembered_and_its_numbers_are_checked_again(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = timed(monkeypatch, {"eager": [1.0], "same": [0.5]})
    hvd.optimize(Net(), random_batch(), backends=["same"])
    taken = len(order)
    again = hvd.optimize(Net(), random_batch(), backends=["same"])
    assert is_compiled(again) and len(order) == taken
    hvd.optimize(Net(), random_batch()[:4], backends=["same"])
    assert len(order) > taken, "another shape is another choice"
    monkeypatch.setattr(compile_trials, "_TOLERANCES", {torch.float32: -1.0})
    assert not is_compiled(hvd.optimize(Net(), random_batch(), backends=["same"]))


def test_what_could_not_be_compiled_is_tried_again(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, {"eager": [1.0], "unable_once": [0.5]})
    assert not is_compiled(hvd.optimize(Net(), random_batch(), backends=["unable_once"]))
    monkeypatch.setattr(f"{__name__}.ABLE", ["now"])
    assert is_compiled(hvd.optimize(Net(), random_batch(), backends=["unable_once"]))


def test_a_model_that_cannot_be_compared_stays_eager(told: list[str]) -> None:
    class Noise(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.rand_like(x)

    assert not is_compiled(hvd.optimize(Noise(), random_batch(), backends=["same"]))
    assert any("random numbers" in line for line in told)


def test_kinds_of_batches_and_losses(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"eager": [1.0], "same": [0.5]})
    x = random_batch()
    losses: list[float] = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        losses.append(0)
        return output.abs().sum()

    for batch in (x, (x, 2.0), {"x": x, "scale": 2.0}, [x, (x[:3],)]):
        assert is_compiled(hvd.optimize(Net(), batch, loss, backends=["same"]))
    assert losses
    with torch.no_grad():
        assert is_compiled(hvd.optimize(Net().eval(), x, backends=["same"]))
    with pytest.raises(ValueError, match="give `loss`"):
        hvd.optimize(Detached(), x, backends=[])
    with pytest.raises(ValueError, match="at least one batch"):
        hvd.optimize(Net(), [])


def test_a_shape_that_cannot_be_compiled_later_runs_eagerly(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @backend("once")
    def once(graph: Any) -> Any:
        return unable(graph) if model is not None else graph.forward

    timed(monkeypatch, {"eager": [1.0], "once": [0.5]})
    model: Any = None
    model = hvd.optimize(Net().eval(), random_batch(), backends=["once"])
    assert is_compiled(model)
    wider = torch.randn(6, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="dtype"):  # the model's own error is not hidden
        model(wider)
    assert torch.equal(model(random_batch()[:1]), model._call_impl(random_batch()[:1]))
    assert not is_compiled(model)
    assert any("Net runs eagerly from now on" in line for line in told)


@pytest.mark.timeout(900)  # the first kernel of a machine's inductor takes minutes if it is busy
def test_inductor_has_eagers_numbers(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"eager": [1.0], "inductor": [0.5]})
    model = hvd.optimize(Net(), random_batch(), backends=["inductor"])
    assert is_compiled(model), told
    assert "the model runs by inductor" in told


@pytest.mark.ranks(2, framework="horoacc.torch")
def test_ranks_choose_alike(tmp_path: Path) -> None:
    os.environ["HOROACC_CACHE_DIR"] = str(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        for told in listening():
            # Rank 1 is the slow one, and decides.
            slow = 2.0 if hvd.rank() == 1 else 0.1
            order = timed(patch, {"eager": [1.0], "same": [slow], "same, block by block": [0.5]})
            model = Net()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
            )
            hvd.optimize(
                model, random_batch(), optimizer=optimizer, backends=["unable_on_rank_1", "same"]
            )
            assert "unable_on_rank_1" not in order
            assert not is_compiled(model) and all(is_compiled(block) for block in model.blocks)
            assert all(p.grad is None for p in model.parameters())
            if hvd.rank() == 0:
                assert "the model runs by same, block by block" in told
                assert any("rank 1: " in line and "unable" in line for line in told)
            model(random_batch() * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
            weights = model.blocks[1].linear.weight.detach()
            assert torch.equal(hvd.broadcast(weights, 0), weights)
            # One rank's numbers cannot be compared, and the other does not wait for it.
            nothing = random_batch() * (float("nan") if hvd.rank() == 1 else 1.0)
            assert not is_compiled(hvd.optimize(Net(), nothing, backends=["same"]))
