"""SyncBatchNorm against torch's BatchNorm over the ranks' batches put together, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import horoacc.torch as hvd
from horoacc.batch_statistics import merge

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")
DOUBLE = torch.float64
ALONE = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def batches(step: int, inner: tuple[int, ...], rows: list[int]) -> list[torch.Tensor]:
    """Every rank's batch; their means and variances differ."""
    generator = torch.Generator().manual_seed(11 + step)
    return [
        torch.randn((count, 3, *inner), generator=generator, dtype=DOUBLE) * (rank + 1) + 5 * rank
        for rank, count in enumerate(rows)
    ]


def twin(dims: int, **arguments: Any) -> tuple[nn.Module, nn.Module]:
    """The layer of this rank, and the one that sees everything."""
    own = hvd.SyncBatchNorm(3, **arguments).double()
    alone = ALONE[dims](3, **arguments).double()
    if own.affine:
        with torch.no_grad():
            for layer in (own, alone):
                layer.weight.copy_(torch.tensor([0.5, -2.0, 3.0]))
                layer.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    return own, alone


def check(own: nn.Module, alone: nn.Module, inner: tuple[int, ...], rows: list[int]) -> None:
    """Some steps, forwards and backwards, then an evaluation."""
    me = hvd.rank()
    mine = slice(sum(rows[:me]), sum(rows[: me + 1]))
    for step in range(3):
        given = batches(step, inner, rows)
        x = given[me].clone().requires_grad_()
        whole = torch.cat(given).requires_grad_()
        to = torch.randn(whole.shape, generator=torch.Generator().manual_seed(5), dtype=DOUBLE)
        own.zero_grad()
        alone.zero_grad()
        y = own(x)
        wanted = alone(whole)
        torch.testing.assert_close(y, wanted[mine], rtol=1e-10, atol=1e-10)
        (y * to[mine]).sum().backward()
        (wanted * to).sum().backward()
        assert x.grad is not None and whole.grad is not None
        torch.testing.assert_close(x.grad, whole.grad[mine], rtol=1e-9, atol=1e-9)
        for got, value in zip(own.parameters(), alone.parameters(), strict=True):
            # A rank's part of the gradient: together they are that of the whole.
            total = hvd.allreduce(got.grad, op=hvd.Sum)
            torch.testing.assert_close(total, value.grad, rtol=1e-9, atol=1e-9)
    for (name, got), value in zip(own.named_buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(got, value, rtol=1e-10, atol=1e-10, msg=name)
    own.eval()
    alone.eval()
    given = batches(9, inner, rows)
    torch.testing.assert_close(own(given[me]), alone(torch.cat(given))[mine])


@pytest.mark.parametrize("inner", [(), (4,), (3, 2), (2, 3, 2)], ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": None},
        {"momentum": 0.7, "eps": 0.1},
        {"affine": False},
        {"track_running_stats": False},
    ],
    ids=str,
)
def test_same_as_the_whole_batch(inner: tuple[int, ...], arguments: dict[str, Any]) -> None:
    own, alone = twin(len(inner) + 2, **arguments)
    check(own, alone, inner, [2 + 3 * (rank % 2) for rank in range(hvd.size())])


def test_unequal_and_empty_batches() -> None:
    own, alone = twin(4)
    # All but the last rank have one sample or none: alone they could not be normalised.
    rows = [rank % 2 for rank in range(hvd.size())]
    rows[-1] = 4
    check(own, alone, (1, 2), rows)


@pytest.mark.ranks(16, framework="horoacc.torch")
def test_sixteen_ranks() -> None:
    own, alone = twin(2)
    check(own, alone, (), [1 + rank % 3 for rank in range(16)])


@pytest.mark.ranks(3, framework="horoacc.torch")
def test_process_set() -> None:
    members = hvd.add_process_set([0, 2])
    layer = hvd.SyncBatchNorm(3, process_set=members).double()
    given = batches(0, (4,), [2, 3, 4])
    if members.included():
        wanted = nn.BatchNorm1d(3).double()(torch.cat([given[0], given[2]]))
        mine = wanted[:2] if hvd.rank() == 0 else wanted[2:]
        torch.testing.assert_close(layer(given[hvd.rank()]), mine)
    else:
        with pytest.raises(ValueError, match="not in the process set"):
            layer(given[1])
    hvd.remove_process_set(members)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types(dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in batches(0, (5,), [4] * hvd.size())]
    layer = hvd.SyncBatchNorm(3)
    wanted = nn.BatchNorm1d(3).double()(torch.cat(given).double())
    got = layer(given[hvd.rank()])
    assert got.dtype == dtype
    begin = 4 * hvd.rank()
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(
        got.double(), wanted[begin : begin + 4], rtol=tolerance, atol=tolerance
    )
    assert layer.running_mean.dtype == torch.float32


def test_statistics_do_not_cancel() -> None:
    # A mean of 1e8 and a variance of 1: sums of squares would have no digit left.
    layer = hvd.SyncBatchNorm(1, affine=False, momentum=1.0).double()
    values = torch.arange(8.0, dtype=DOUBLE).view(-1, 1) + 1e8
    layer(values)
    count = 8 * hvd.size()
    variance = 5.25 * count / (count - 1)
    assert layer.running_var.item() == pytest.approx(variance, rel=1e-12)


def test_trains_like_one_rank() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(6, 5), nn.Identity(), nn.ReLU(), nn.Linear(5, 1)).double()

    own, alone = model(), model()
    own[1] = hvd.SyncBatchNorm(5).double()
    alone[1] = nn.BatchNorm1d(5).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(own.parameters(), lr=0.1), own.named_parameters()
    )
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1)
    x = torch.randn(4 * hvd.size(), 6, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    for _ in range(4):
        optimizer.zero_grad()
        own(x[4 * hvd.rank() :][:4]).square().mean().backward()
        optimizer.step()
        sgd.zero_grad()
        alone(x).square().mean().backward()
        sgd.step()
    for got, value in zip(own.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9)


def test_refused() -> None:
    layer = hvd.SyncBatchNorm(3)
    for wrong, words in (
        (torch.zeros(3), "at least 2D"),
        (torch.zeros(2, 4), "3 channels"),
        (torch.zeros(2, 3, dtype=torch.int64), "floating-point"),
    ):
        with pytest.raises(ValueError, match=words):
            layer(wrong)
    nothing = torch.zeros(1 if hvd.rank() == 0 else 0, 3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(nothing)


@pytest.mark.ranks(1)
def test_merging_parts() -> None:
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(rows, 2)) for rows in (3, 0, 1, 7)]
    described = [
        [
            len(p),
            *(p.mean(0) if len(p) else (np.nan,) * 2),
            *(p.var(0) * len(p) if len(p) else (9, 9)),
        ]
        for p in parts
    ]
    whole = np.concatenate(parts)
    got = merge(described)
    assert got.count == 11
    np.testing.assert_allclose(got.mean, whole.mean(0))
    np.testing.assert_allclose(got.variance, whole.var(0))
