"""Horovod's reductions, row by row: values, an argument that is not the default, an error."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import oracle
import pytest
import torch

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")
STRIDED = torch.zeros(4, 2).t()


def given(label: str, shape: tuple[int, ...] = (5, 3), dtype: str = "float64") -> list[Any]:
    """Every rank's tensor."""
    return [
        torch.from_numpy(np.array(oracle.values(dtype, shape, rank, label)))
        for rank in range(hvd.size())
    ]


def wanted(tensors: list[torch.Tensor], op: int, pre: float = 1.0, post: float = 1.0) -> Any:
    return torch.from_numpy(np.array(oracle.reduce([t.numpy() for t in tensors], op, pre, post)))


@contextlib.contextmanager
def process_set() -> Iterator[hvd.ProcessSet]:
    """The even ranks."""
    members = hvd.add_process_set(list(range(0, hvd.size(), 2))) if hvd.size() > 1 else (
        hvd.global_process_set)  # fmt: skip
    yield members
    if members is not hvd.global_process_set:
        assert hvd.remove_process_set(members)


def check_errors(call: Callable[..., Any], tensor: Callable[[torch.Tensor], Any]) -> None:
    """What no call takes; and, on several ranks, what they disagree about."""
    with pytest.raises(ValueError, match="contiguous"):
        hvd.synchronize(call(tensor(STRIDED)))
    with pytest.raises(ValueError, match="not supported"):
        hvd.synchronize(call(tensor(torch.zeros(3, dtype=torch.uint16))))
    with pytest.raises(ValueError, match="not registered"):
        hvd.synchronize(call(tensor(torch.zeros(3)), process_set=hvd.ProcessSet([0])))
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.synchronize(call(tensor(torch.zeros(3 + hvd.rank())), name="differs"))


def check_reduction(call: Callable[..., Any], in_place: bool) -> None:
    """One tensor, whichever of the four functions: `call` gives a tensor or a handle."""

    def done(result: Any) -> torch.Tensor:
        return result if isinstance(result, torch.Tensor) else hvd.synchronize(result)

    me = hvd.rank()
    for arguments, op in (
        ({}, hvd.Average),
        ({"average": False}, hvd.Sum),
        ({"op": hvd.Min, "name": "lowest"}, hvd.Min),
        ({"op": hvd.Product}, hvd.Product),
    ):
        tensors = given(f"reduce {op}")
        mine = tensors[me].clone()
        with pytest.warns(DeprecationWarning) if "average" in arguments else (
            contextlib.nullcontext()):  # fmt: skip
            got = done(call(mine, **arguments))
        assert torch.equal(got, wanted(tensors, op))
        assert (got is mine) == in_place
        assert in_place or torch.equal(mine, tensors[me])
    tensors = given("scaled", dtype="float32")
    scales = {"prescale_factor": 0.5, "postscale_factor": 3.0}
    got = done(call(tensors[me].clone(), op=hvd.Sum, **scales))
    assert torch.equal(got, wanted(tensors, hvd.Sum, 0.5, 3.0))
    with process_set() as members:
        tensors = given("set")
        if members.included():
            got = done(call(tensors[me].clone(), op=hvd.Sum, process_set=members))
            assert torch.equal(got, wanted(tensors[::2], hvd.Sum))
        else:
            with pytest.raises(ValueError, match="not in the process set"):
                call(tensors[me].clone(), process_set=members)
    with pytest.raises(ValueError, match="supersedes"):
        call(tensors[me], average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="no reduction"):
        call(tensors[me], op=77)
    check_errors(lambda *a, **k: done(call(*a, **k)), lambda x: x)


def check_group(call: Callable[..., Any], in_place: bool) -> None:
    """Several tensors, whichever of the four functions."""

    def done(result: Any) -> list[torch.Tensor]:
        return result if isinstance(result, list) else hvd.synchronize(result)

    me = hvd.rank()
    first, second = given("one", (4,)), given("two", (2, 3), "int64")
    for arguments, op in (({}, hvd.Average), ({"op": hvd.Sum, "name": "group"}, hvd.Sum)):
        mine = [first[me].clone(), second[me].clone()]
        got = done(call(mine, **arguments))
        assert torch.equal(got[0], wanted(first, op))
        assert torch.equal(got[1], wanted(second, op))
        assert (got[0] is mine[0]) == in_place
    with process_set() as members:
        if members.included():
            got = done(call([first[me].clone()], op=hvd.Max, process_set=members,
                            postscale_factor=2.0))  # fmt: skip
            assert torch.equal(got[0], wanted(first[::2], hvd.Max, 1.0, 2.0))
    for empty in ([], torch.zeros(3)):
        with pytest.raises(ValueError, match="list of at least one"):
            call(empty)
    check_errors(lambda *a, **k: done(call(*a, **k)), lambda x: [x])


def test_allreduce() -> None:
    check_reduction(hvd.allreduce, in_place=False)
    x = torch.full((3,), 1 / 3)
    got = hvd.allreduce(x, compression=hvd.Compression.fp16)
    assert torch.equal(got, x.half().float())


def test_allreduce_async() -> None:
    check_reduction(hvd.allreduce_async, in_place=False)
    handle = hvd.allreduce_async(torch.ones(2), name="held")
    with pytest.raises(ValueError, match="held"):
        hvd.allreduce_async(torch.ones(2), name="held")
    hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None


def test_allreduce_in_place() -> None:
    check_reduction(hvd.allreduce_, in_place=True)


def test_allreduce_async_in_place() -> None:
    check_reduction(hvd.allreduce_async_, in_place=True)


def test_grouped_allreduce() -> None:
    check_group(hvd.grouped_allreduce, in_place=False)
    x = torch.full((3,), 1 / 3)
    (got,) = hvd.grouped_allreduce([x], compression=hvd.Compression.bf16)
    assert torch.equal(got, x.bfloat16().float())


def test_grouped_allreduce_async() -> None:
    check_group(hvd.grouped_allreduce_async, in_place=False)


def test_grouped_allreduce_in_place() -> None:
    check_group(hvd.grouped_allreduce_, in_place=True)


def test_grouped_allreduce_async_in_place() -> None:
    check_group(hvd.grouped_allreduce_async_, in_place=True)


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_sparse_allreduce_async() -> None:
    me, size = hvd.rank(), hvd.size()

    def mine(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[rank, size]], [[1.0, 2.0], [3.0, float(rank)]],
                                       (size + 1, 2))  # fmt: skip

    dense = torch.stack([mine(rank).to_dense() for rank in range(size)])
    handle = hvd.sparse_allreduce_async(mine(me), "sparse", hvd.Average)
    assert callable(handle)
    torch.testing.assert_close(handle().to_dense(), dense.mean(0))
    handle = hvd.sparse_allreduce_async(mine(me), "sparse", op=hvd.Sum)
    torch.testing.assert_close(hvd.synchronize(handle).to_dense(), dense.sum(0))
    with process_set() as members:
        if members.included():
            handle = hvd.sparse_allreduce_async(mine(me), None, hvd.Sum, process_set=members)
            torch.testing.assert_close(handle().to_dense(), dense[::2].sum(0))
    with pytest.raises(ValueError, match="averaged or summed"):
        hvd.sparse_allreduce_async(mine(me), "sparse", hvd.Max)


@pytest.mark.ranks(2)
def test_sparse_allreduce_warns_of_nothing() -> None:
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch says it once in a process
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            mine = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (2,), check_invariants=True)
            got = hvd.sparse_allreduce_async(mine, "warned of", hvd.Sum)()
            assert got.to_dense().tolist() == [1.0, 1.0]
            table = torch.nn.Embedding(3, 2, sparse=True)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
            for rows in ([0, 1], [2]):
                optimizer.zero_grad()
                # From the second step on a rank without a gradient gives an empty one.
                if hvd.rank() == 0 or len(rows) > 1:
                    table(torch.tensor(rows)).sum().backward()
                optimizer.step()
    finally:
        torch.set_warn_always(always)
    assert [str(one.message) for one in told if "nvariant" in str(one.message)] == []


def check_scatter(call: Callable[..., Any]) -> None:
    """One tensor, whichever of the two functions."""

    def done(result: Any) -> torch.Tensor:
        return result if isinstance(result, torch.Tensor) else hvd.synchronize(result)

    me, size = hvd.rank(), hvd.size()
    for rows in (size + 1, 1):
        tensors = given(f"scatter {rows}", (rows, 2))
        mine = oracle.rows_of(rows, me, size)
        assert torch.equal(done(call(tensors[me])), wanted(tensors, hvd.Average)[mine])
        got = done(call(tensors[me], name="scatter", op=hvd.Sum, prescale_factor=2.0,
                        postscale_factor=0.5))  # fmt: skip
        assert torch.equal(got, wanted(tensors, hvd.Sum, 2.0, 0.5)[mine])
    with process_set() as members:
        if members.included():
            got = done(call(tensors[me], op=hvd.Sum, process_set=members))
            mine = oracle.rows_of(1, members.rank() or 0, members.size() or 1)
            assert torch.equal(got, wanted(tensors[::2], hvd.Sum)[mine])
    for op in (hvd.Max, hvd.Adasum):
        with pytest.raises(RuntimeError, match="only supports Average and Sum"):
            call(tensors[me], op=op)
    with pytest.raises(ValueError, match="at least one dimension"):
        call(torch.tensor(1.0))
    check_errors(lambda *a, **k: done(call(*a, **k)), lambda x: x)


def check_grouped_scatter(call: Callable[..., Any]) -> None:
    """Several tensors, whichever of the two functions."""

    def done(result: Any) -> list[torch.Tensor]:
        return result if isinstance(result, list) else hvd.synchronize(result)

    me, size = hvd.rank(), hvd.size()
    first, second = given("left", (size, 2)), given("right", (2 * size + 1,), "int32")
    mine = [oracle.rows_of(rows, me, size) for rows in (size, 2 * size + 1)]
    for arguments, op in (({}, hvd.Average), ({"op": hvd.Sum, "name": "parts"}, hvd.Sum)):
        got = done(call([first[me], second[me]], **arguments))
        assert torch.equal(got[0], wanted(first, op)[mine[0]])
        assert torch.equal(got[1], wanted(second, op)[mine[1]])
    with pytest.raises(RuntimeError, match="only supports Average and Sum"):
        call([first[me]], op=hvd.Min)
    with pytest.raises(ValueError, match="list of at least one"):
        call([])
    check_errors(lambda *a, **k: done(call(*a, **k)), lambda x: [x])


def test_reducescatter() -> None:
    check_scatter(hvd.reducescatter)
    x = torch.full((hvd.size(),), 1 / 3)
    got = hvd.reducescatter(x, compression=hvd.Compression.fp16)
    assert torch.equal(got, x[:1].half().float())


def test_reducescatter_async() -> None:
    check_scatter(hvd.reducescatter_async)


def test_grouped_reducescatter() -> None:
    check_grouped_scatter(hvd.grouped_reducescatter)


def test_grouped_reducescatter_async() -> None:
    check_grouped_scatter(hvd.grouped_reducescatter_async)
