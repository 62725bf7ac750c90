"""torch.compile: collectives inside the graph, and gradients that leave compiled blocks early."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import training
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import is_cudagraph_unsafe_fx_node
from torch.fx import GraphModule

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(3, framework="horoacc.torch")


def compiled(function: Any, backend: Any = "aot_eager") -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def reduce_all(x: torch.Tensor) -> torch.Tensor:
    mean = hvd.allreduce(x * 2, name="mean")
    total = hvd.allreduce(
        x.t().contiguous(), op=hvd.Sum, prescale_factor=0.5, compression=hvd.Compression.fp16
    )
    low, high = hvd.grouped_allreduce([x.sin(), x[:1].cos()], op=hvd.Sum)
    return mean + total.t() + low * high


def send(x: torch.Tensor) -> torch.Tensor:
    return hvd.broadcast(x * 3, hvd.size() - 1, name="root") + x


def scatter(x: torch.Tensor) -> torch.Tensor:
    one = hvd.reducescatter(x.exp(), op=hvd.Sum, postscale_factor=2.0)
    (other,) = hvd.grouped_reducescatter([x * x], name="scatter")
    return one * other


def gather(x: torch.Tensor) -> torch.Tensor:
    whole = hvd.allgather(x * 2, name="rows")
    one, two = hvd.grouped_allgather([x.sin(), x[:1]], name="group")
    return whole.sum() * one.sum() + two.sum()


def exchange(x: torch.Tensor) -> torch.Tensor:
    equal = hvd.alltoall(x.sin())
    splits = torch.full((hvd.size(),), x.shape[0] // hvd.size(), dtype=torch.int32)
    rows, received = hvd.alltoall(x * 2, splits, name="splits")
    return equal.sum() * rows.sum() + received.sum()


CASES = [reduce_all, send, scatter, gather, exchange]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_full_graph_is_what_eager_is(case: Any) -> None:
    """Mixtures; each collective is checked against closed forms in `test_gradients.py`."""
    me, size = hvd.rank(), hvd.size()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    rows = (me + 1) * size if case in (gather, exchange) else 2 * size + 1
    generator = torch.Generator().manual_seed(me)
    x = torch.randn(rows, rows if case is reduce_all else 3, generator=generator)
    results = []
    splits_cuda_graphs = []

    def look(graph: GraphModule, _: Any) -> GraphModule:
        for node in graph.graph.nodes:
            if getattr(node.target, "namespace", "") == "horoacc":
                splits_cuda_graphs.append(is_cudagraph_unsafe_fx_node(node))
        return graph

    for function in (case, compiled(case, aot_autograd(fw_compiler=look))):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        (y * (me + 1)).sum().backward()
        results.append((y.detach(), leaf.grad))
    (wanted, wanted_grad), (got, got_grad) = results
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(got_grad, wanted_grad)
    assert len(splits_cuda_graphs) > 1 and all(splits_cuda_graphs)  # forward and backward


class Block(nn.Module):
    """A layer whose statistics are those of all ranks, and which mixes the ranks' halves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        mean = hvd.allreduce(y.mean(0))
        spread = hvd.allreduce((y - mean).square().mean(0))
        return torch.relu((y - mean) / (spread + 1e-5).sqrt())


@pytest.mark.ranks(2, 3, framework="horoacc.torch")
def test_model_that_uses_collectives() -> None:
    models = []
    for wrap in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(Block(), Block(), nn.Linear(8, 1, dtype=torch.float64))
        forward = compiled(model) if wrap else model
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
        generator = torch.Generator().manual_seed(hvd.rank())
        for _ in range(3):
            x = torch.randn(5, 8, generator=generator, dtype=torch.float64)
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
        models.append(model)
        training.finish(model)
    for got, wanted in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.ranks(2, framework="horoacc.torch", env={"HOROACC_FUSION_THRESHOLD": "2048"})
def test_gradients_of_a_compiled_block_travel_while_earlier_ones_compute() -> None:
    torch.manual_seed(3)
    torch.compiler.reset()
    blocks = [nn.Sequential(nn.Linear(20, 20), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(*(torch.compile(block, backend="aot_eager") for block in blocks))
    optimizer: Any = training.wrapped(model)
    seen: list[tuple[int, bool]] = []
    begun: dict[str, int] = {}

    class Between(torch.autograd.Function):
        """Looks, in the backward pass, at what became of the gradients of the later blocks."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            submitted = hvd.counters()["submissions"] - begun["submissions"]
            deadline = time.monotonic() + 20
            while submitted and not_reduced() and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append((submitted, not not_reduced()))
            return grad

    def not_reduced() -> bool:
        return hvd.counters()["buckets"] == begun["buckets"]

    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 20)
        for block in model:
            x = Between.apply(block(x))
        begun = hvd.counters()
        x.sum().backward()
        optimizer.step()
    # Nothing has been computed behind the last block; then come two gradients a block, and some
    # have been reduced before the next block's are computed.
    assert seen == [(0, False), (2, True), (4, True)] * 3


@pytest.mark.ranks(2, framework="horoacc.torch")
def test_generated_code() -> None:
    """Inductor compiles with the system's compiler, which takes its time: one small function."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(x.t() * 3, op=hvd.Sum, name="generated") + 1

    x = (torch.arange(6.0).view(2, 3) * (hvd.rank() + 1)).requires_grad_()
    y = compiled(scaled, "inductor")(x)
    assert torch.equal(y, torch.arange(6.0).view(2, 3).t() * 9 + 1)
    (y * (hvd.rank() + 1)).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((2, 3), 9.0))


@pytest.mark.ranks(1, 2, framework="horoacc.torch")
def test_other_calls_cut_the_graph() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        y = hvd.allreduce_(x * 2, op=hvd.Sum, name="in place")
        handle = hvd.allgather_async(y + 1, name="handle")
        whole = hvd.synchronize(handle)
        small = hvd.allreduce(y, op=hvd.Sum, compression=hvd.Compression.int8)
        return whole.sum() + small.sum()

    torch.compiler.reset()
    x = torch.arange(4.0) + hvd.rank()
    got = torch.compile(mixed, backend="aot_eager")(x)
    torch.testing.assert_close(got, mixed(x))
    assert got.item() > 0


@pytest.mark.ranks(2, framework="horoacc.torch")
def test_what_cannot_be_compiled_says_so() -> None:
    with pytest.raises(Exception, match="uncompiled"):
        compiled(lambda x: hvd.allreduce(x, compression=hvd.Compression.int8))(torch.ones(3))
    with pytest.raises(Exception, match="no reduction"):
        compiled(lambda x: hvd.allreduce(x, op=77))(torch.ones(3))


@pytest.mark.ranks(2, framework="horoacc.torch")
def test_compiled_autograd() -> None:
    """A whole step with its backward pass in a graph, before and after steps without."""
    torch.compiler.reset()
    wanted, model = training.network(), training.network()
    batches = training.own_batches(5)
    training.steps(wanted, training.wrapped(wanted), batches)
    optimizer: Any = training.wrapped(model)

    def forward_and_backward(x: torch.Tensor, y: torch.Tensor) -> None:
        nn.functional.cross_entropy(model(x), y).backward()

    def steps(step: Any, batches: Any) -> None:
        for x, y in batches:
            optimizer.zero_grad()
            submitted = hvd.counters()["submissions"]
            step(x, y)
            handed_over.append(hvd.counters()["submissions"] - submitted)
            optimizer.step()

    handed_over: list[int] = []
    steps(forward_and_backward, batches[:1])
    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled_step = torch.compile(forward_and_backward, backend="aot_eager")
        steps(compiled_step, batches[1:4])
        with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
            compiled_step(*batches[0])
            compiled_step(*batches[0])
        optimizer.synchronize()
    steps(forward_and_backward, batches[4:])
    # Every gradient was handed over in the backward pass, and not at the step; in the end as one
    # call, by a locked plan.
    assert handed_over == [*[len(list(model.parameters()))] * 4, 1]
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    training.finish(model)
