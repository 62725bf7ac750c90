"""Horovod's exchanges, row by row: values, an argument that is not the default, an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_contract_reductions import STRIDED, given, process_set

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")


def done(result: Any) -> Any:
    return hvd.synchronize(result) if isinstance(result, int) else result


def rows_of_rank(label: str) -> list[torch.Tensor]:
    """Rank r has r + 1 rows."""
    return [whole[: rank + 1] for rank, whole in enumerate(given(label, (hvd.size() + 1, 2)))]


def check_gather(call: Callable[..., Any]) -> None:
    me = hvd.rank()
    tensors = rows_of_rank("rows")
    assert torch.equal(done(call(tensors[me])), torch.cat(tensors))
    assert torch.equal(done(call(tensors[me].bool(), name="truth")), torch.cat(tensors).bool())
    with process_set() as members:
        if members.included():
            got = done(call(tensors[me], process_set=members))
            assert torch.equal(got, torch.cat(tensors[::2]))
    with pytest.raises(ValueError, match="at least one dimension"):
        call(torch.tensor(1.0))
    with pytest.raises(ValueError, match="contiguous"):
        call(STRIDED)
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            done(call(torch.zeros(2, 1 + me), name="differs"))


def check_grouped_gather(call: Callable[..., Any]) -> None:
    me = hvd.rank()
    first, second = rows_of_rank("one"), given("two", (3,), "int32")
    for arguments in ({}, {"name": "group"}):
        got = done(call([first[me], second[me]], **arguments))
        assert torch.equal(got[0], torch.cat(first))
        assert torch.equal(got[1], torch.cat(second))
    with process_set() as members:
        if members.included():
            (got,) = done(call([first[me]], process_set=members))
            assert torch.equal(got, torch.cat(first[::2]))
    with pytest.raises(ValueError, match="list of at least one"):
        call([])
    if hvd.size() > 1:
        tensors = [torch.zeros(2)] * (1 + me % 2)
        with pytest.raises(hvd.HorovodInternalError, match="number of grouped tensors"):
            done(call(tensors))


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_allgather() -> None:
    check_gather(hvd.allgather)


def test_allgather_async() -> None:
    check_gather(hvd.allgather_async)


def test_grouped_allgather() -> None:
    check_grouped_gather(hvd.grouped_allgather)


def test_grouped_allgather_async() -> None:
    check_grouped_gather(hvd.grouped_allgather_async)


def check_broadcast(call: Callable[..., Any], in_place: bool) -> None:
    me, size = hvd.rank(), hvd.size()
    for root, arguments in ((0, {}), (size - 1, {"name": "root"})):
        tensors = given(f"from {root}")
        mine = tensors[me].clone()
        got = done(call(mine, root, **arguments))
        assert torch.equal(got, tensors[root])
        assert (got is mine) == in_place
        assert in_place or torch.equal(mine, tensors[me])
    with process_set() as members:
        assert members.ranks is not None
        if members.included():
            # The root's number is that of the whole job.
            got = done(call(tensors[me].clone(), members.ranks[-1], process_set=members))
            assert torch.equal(got, tensors[members.ranks[-1]])
    with pytest.raises(ValueError, match="root rank"):
        done(call(torch.zeros(2), size))
    with pytest.raises(ValueError, match="contiguous"):
        call(STRIDED, 0)
    if size > 1:
        with pytest.raises(hvd.HorovodInternalError, match="root rank"):
            done(call(torch.zeros(2), me % 2, name="differs"))


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_broadcast() -> None:
    check_broadcast(hvd.broadcast, in_place=False)


def test_broadcast_async() -> None:
    check_broadcast(hvd.broadcast_async, in_place=False)


def test_broadcast_in_place() -> None:
    check_broadcast(hvd.broadcast_, in_place=True)


def test_broadcast_async_in_place() -> None:
    check_broadcast(hvd.broadcast_async_, in_place=True)


def check_alltoall(call: Callable[..., Any], always_both: bool) -> None:
    me, size = hvd.rank(), hvd.size()
    tensors = given("equal", (2 * size, 3))
    got = done(call(tensors[me]))
    if always_both:
        got, received = got
        assert received.tolist() == [2] * size
    assert torch.equal(got, torch.cat([t[2 * me : 2 * me + 2] for t in tensors]))
    # Rank r sends r + k rows to rank k.
    counts = [[rank + k for k in range(size)] for rank in range(size)]
    tensors = [given("split", (sum(counts[rank]), 2))[rank] for rank in range(size)]
    splits = torch.tensor(counts[me], dtype=torch.int32)
    got, received = done(call(tensors[me], splits, name="split"))
    assert received.dtype == torch.int32
    assert received.tolist() == [counts[rank][me] for rank in range(size)]
    parts = [t[sum(counts[r][:me]) :][: counts[r][me]] for r, t in enumerate(tensors)]
    assert torch.equal(got, torch.cat(parts))
    with process_set() as members:
        if members.included():
            others = members.size() or 1
            got = done(call(torch.full((others,), me), process_set=members))
            assert (got[0] if always_both else got).tolist() == members.ranks
    for wrong, words in (
        (torch.ones(1, 1, dtype=torch.int32), "one dimension"),
        (torch.ones(size), "int32"),
        (torch.ones(size + 1, dtype=torch.int32), "splits for"),
        (torch.full((size,), -1, dtype=torch.int32), "negative"),
        (torch.full((size,), 9, dtype=torch.int32), "add up to"),
    ):
        with pytest.raises(ValueError, match=words):
            done(call(torch.zeros(size, 2), wrong))
    if size > 1:
        with pytest.raises(ValueError, match="divisible"):
            done(call(torch.zeros(size + 1)))


@pytest.mark.ranks(1, 2, 3, 4, 16, framework="horoacc.torch")
def test_alltoall() -> None:
    check_alltoall(hvd.alltoall, always_both=False)


def test_alltoall_async() -> None:
    check_alltoall(hvd.alltoall_async, always_both=True)


def test_barrier() -> None:
    hvd.barrier()
    with process_set() as members:
        if members.included():
            hvd.barrier(process_set=members)
        else:
            with pytest.raises(ValueError, match="not in the process set"):
                hvd.barrier(members)
    # Nobody leaves before the last has come.
    arrivals = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name="came")
    hvd.barrier()
    assert hvd.synchronize(arrivals).item() == hvd.size()
    with pytest.raises(ValueError, match="not registered"):
        hvd.barrier(hvd.ProcessSet([0]))


def test_a_barrier_holds_back_its_own_set_only(ranks: int) -> None:
    """Rank 1 stays in its set's barrier until rank 0 has passed those of another set."""
    me = hvd.rank()
    if ranks == 1:
        hvd.barrier()
        return
    first, second = hvd.add_process_set([0]), hvd.add_process_set(list(range(1, ranks)))
    own = first if me == 0 else second
    for turn in range(3):
        if me == 1:
            go = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name=f"go {turn}")
            hvd.barrier(process_set=own)
            got = hvd.synchronize(go)
        elif me == 0:
            hvd.barrier(process_set=own)
            got = hvd.allreduce(torch.ones(1), op=hvd.Sum, name=f"go {turn}")
        else:
            got = hvd.allreduce(torch.ones(1), op=hvd.Sum, name=f"go {turn}")
            hvd.barrier(process_set=own)
        assert got.item() == ranks
    hvd.remove_process_set(first)
    hvd.remove_process_set(second)


def test_poll_and_synchronize() -> None:
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="polled")
        # The others submit only after this; alone it is complete at once or soon.
        assert hvd.size() == 1 or not hvd.poll(handle)
    hvd.barrier()
    if hvd.rank() > 0:
        handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="polled")
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 2
    with pytest.raises(ValueError, match="was not created or has been cleared"):
        hvd.poll(handle)
    assert hvd.synchronize(handle) is None
    assert hvd.synchronize(10**9) is None


def test_broadcast_parameters() -> None:
    root = hvd.size() - 1
    for form in (dict, list, "tensors"):
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 2)
        torch.manual_seed(root)
        wanted = torch.nn.Linear(3, 2)
        named = list(model.named_parameters())
        params: Any = [p for _, p in named] if form == "tensors" else form(named)  # type: ignore[operator]
        hvd.broadcast_parameters(params, root_rank=root)
        assert torch.equal(model.weight, wanted.weight)
        assert torch.equal(model.bias, wanted.bias)
    for wrong in (iter(named), 3):
        with pytest.raises(ValueError, match="invalid params"):
            hvd.broadcast_parameters(wrong, 0)


def test_broadcast_optimizer_state() -> None:
    me, root = hvd.rank(), hvd.size() - 1
    param = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([param], lr=0.1 * (me + 1), betas=(0.5, 0.25))
    if me == root:
        for slope in (1.0, 2.0):
            param.grad = torch.full((3,), slope)
            adam.step()
    hvd.broadcast_optimizer_state(adam, root, model=torch.nn.Linear(1, 1))
    (state,) = adam.state.values()
    assert state["step"] == 2
    assert state["exp_avg"].tolist() == [0.5 * 0.5 + 0.5 * 2.0] * 3
    assert adam.param_groups[0]["lr"] == pytest.approx(0.1 * (root + 1))
    assert param.grad is not None and param.grad.tolist() == [2.0 if me == root else 0.0] * 3
    with pytest.raises(ValueError, match=r"cannot broadcast torch\.optim\.LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([param]), 0)


def test_broadcast_object() -> None:
    me, size = hvd.rank(), hvd.size()
    sent = {"rank": me, "add": lambda x: x + me, "tensor": torch.arange(4) * me}
    assert hvd.broadcast_object(sent)["rank"] == 0
    got = hvd.broadcast_object(sent if me == size - 1 else None, root_rank=size - 1, name="object")
    assert got["add"](1) == size
    assert got["tensor"].tolist() == [(size - 1) * k for k in range(4)]
    with process_set() as members:
        assert members.ranks is not None
        if members.included():
            last = members.ranks[-1]
            assert hvd.broadcast_object(me, last, process_set=members) == last
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast_object(1, size)


def test_allgather_object() -> None:
    me, size = hvd.rank(), hvd.size()
    assert hvd.allgather_object(["x"] * me) == [["x"] * rank for rank in range(size)]
    assert hvd.allgather_object(me, name="mine") == list(range(size))
    with process_set() as members:
        if members.included():
            assert hvd.allgather_object(me, process_set=members) == members.ranks
    with pytest.raises(ValueError, match="not registered"):
        hvd.allgather_object(me, process_set=hvd.ProcessSet([0]))
