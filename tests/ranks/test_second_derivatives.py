"""Derivatives of second order through the collectives, as gradient penalties need them.

Every rank's loss is (rank + 1) times the sum of the cubes of what a collective gives it; then the
gradient, weighted, is derived once more. The closed forms follow from the rules of first order.
"""

from __future__ import annotations

from collections.abc import Callable

import oracle
import pytest
import torch

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")
Function = Callable[[torch.Tensor], torch.Tensor]


def of_rank(label: str, rank: int, rows: int) -> torch.Tensor:
    return torch.from_numpy(oracle.values("float64", (rows, 2), rank, label)).clone()


def of_all(label: str, rows: int) -> torch.Tensor:
    return torch.stack([of_rank(label, rank, rows) for rank in range(hvd.size())])


def second(function: Function, rows: int) -> torch.Tensor:
    """The derivative of the weighted gradient of this rank's loss."""
    x = of_rank("x", hvd.rank(), rows).requires_grad_()
    loss = (hvd.rank() + 1) * (function(x) ** 3).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    weighted = (gradient * of_rank("weight", hvd.rank(), rows)).sum()
    return torch.autograd.grad(weighted, x)[0]


def mean_factor() -> float:
    return (hvd.size() + 1) / 2


@pytest.mark.parametrize("grouped", [False, True])
def test_allreduce(grouped: bool) -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return hvd.grouped_allreduce([x])[0] if grouped else hvd.allreduce(x, name="cube")

    wanted = 6 * of_all("x", 3).mean(0) * mean_factor() * of_all("weight", 3).mean(0)
    torch.testing.assert_close(second(one, 3), wanted)


def test_allreduce_beside_a_local_term() -> None:
    x = torch.full((1,), 3.0, dtype=torch.double, requires_grad=True)
    loss = (hvd.allreduce(x) ** 3).sum() + (x**2).sum() / 2
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (found,) = torch.autograd.grad(gradient.sum(), x)
    assert (gradient.item(), found.item()) == (30.0, 19.0)


def test_allgather() -> None:
    me, size = hvd.rank(), hvd.size()
    wanted = 6 * of_rank("x", me, 2) * mean_factor() * of_rank("weight", me, 2) / size
    torch.testing.assert_close(second(hvd.allgather, 2), wanted)


def test_broadcast() -> None:
    root = hvd.size() - 1
    x, weight = of_rank("x", root, 3), of_rank("weight", root, 3)
    wanted = 6 * x * mean_factor() * weight / hvd.size()
    got = second(lambda x: hvd.broadcast(x, root), 3)
    torch.testing.assert_close(got, wanted if hvd.rank() == root else torch.zeros_like(wanted))


def test_alltoall() -> None:
    me, size = hvd.rank(), hvd.size()
    receivers = torch.arange(1.0, size + 1, dtype=torch.float64).repeat_interleave(2)[:, None]
    wanted = 6 * of_rank("x", me, 2 * size) * of_rank("weight", me, 2 * size) * receivers
    torch.testing.assert_close(second(hvd.alltoall, 2 * size), wanted)


def test_reducescatter() -> None:
    size = hvd.size()
    owners = torch.arange(1.0, size + 1, dtype=torch.float64).repeat_interleave(2)[:, None]
    wanted = (
        6 * size**2 * owners * of_all("x", 2 * size).sum(0) * of_all("weight", 2 * size).mean(0)
    )
    torch.testing.assert_close(second(lambda x: hvd.reducescatter(x, op=hvd.Sum), 2 * size), wanted)
