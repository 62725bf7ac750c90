"""torch.distributed's collectives over the backend "horoacc", against NumPy in 64 bits.

Values are small integers, so that every order of summation gives the same.
"""

from __future__ import annotations

import functools
import operator
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from world import array, same, values, world

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")

NUMBERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8,
           torch.int16, torch.int32, torch.int64]  # fmt: skip
MOVED = [*NUMBERS, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
         torch.uint16, torch.uint32, torch.uint64]  # fmt: skip
SHAPES = [(5,), (), (0,), (3, 4), (70_001,)]
FOLDS = {
    "SUM": operator.add, "PRODUCT": operator.mul, "MIN": np.minimum, "MAX": np.maximum,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


def given(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    return [values(shape, dtype, rank, seed) for rank in range(dist.get_world_size())]


def folded(op: str, tensors: list[torch.Tensor]) -> np.ndarray:
    return functools.reduce(FOLDS[op], [array(tensor) for tensor in tensors])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_reduce_sums_every_type(shape: tuple[int, ...]) -> None:
    rank, _ = world()
    for dtype in [*NUMBERS, torch.complex64, torch.complex128]:
        tensors = given(shape, dtype)
        mine = tensors[rank].clone()
        dist.all_reduce(mine)
        same(mine, folded("SUM", tensors), dtype)


@pytest.mark.parametrize("op", ["PRODUCT", "MIN", "MAX"])
def test_all_reduce_of_numbers(op: str) -> None:
    rank, _ = world()
    for dtype in NUMBERS:
        tensors = [t.abs() % 4 if dtype != torch.uint8 else t % 4 for t in given((9,), dtype)]
        mine = tensors[rank].clone()
        dist.all_reduce(mine, getattr(dist.ReduceOp, op))
        same(mine, folded(op, tensors), dtype)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_all_reduce_of_bits(op: str) -> None:
    rank, _ = world()
    for dtype in [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]:
        tensors = given((33,), dtype)
        mine = tensors[rank].clone()
        dist.all_reduce(mine, getattr(dist.ReduceOp, op))
        same(mine, folded(op, tensors), dtype)
    with pytest.raises(ValueError, match="bitwise"):
        dist.all_reduce(torch.ones(2), getattr(dist.ReduceOp, op))


def test_all_reduce_averages_and_scales() -> None:
    rank, size = world()
    tensors = given((6,), torch.float32)
    mean = tensors[rank].clone()
    dist.all_reduce(mine := mean, dist.ReduceOp.AVG)
    assert np.allclose(mine.numpy(), folded("SUM", tensors) / size, rtol=1e-6)
    for factor in (0.5, torch.tensor([0.25])):
        scaled = tensors[rank].clone()
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(factor))
        same(scaled, folded("SUM", tensors) * float(factor))


def test_all_reduce_of_memory_that_is_not_contiguous() -> None:
    rank, _ = world()
    tensors = given((6, 8), torch.float32)
    for view in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[2:, 1:5]):
        whole = tensors[rank].clone()
        before = whole.clone()
        dist.all_reduce(view(whole))
        same(view(whole), view(torch.from_numpy(folded("SUM", tensors))).float())
        view(before).copy_(view(whole))
        same(whole, before, "what lies around the view")


def test_all_reduce_coalesced_and_its_coalescing_manager() -> None:
    rank, _ = world()
    shapes = [(3,), (0,), (2, 5)]
    mine = [values(shape, torch.float64, rank, k) for k, shape in enumerate(shapes)]
    wanted = [folded("SUM", given(shape, torch.float64, k)) for k, shape in enumerate(shapes)]
    direct = [tensor.clone() for tensor in mine]
    dist.all_reduce_coalesced(direct)
    with dist._coalescing_manager():
        for tensor in mine:
            dist.all_reduce(tensor)
    for got, also, right in zip(direct, mine, wanted, strict=True):
        same(got, right)
        same(also, right)


def test_all_reduce_of_sparse_tensors() -> None:
    rank, size = world()

    def sparse(of: int) -> torch.Tensor:
        rows = torch.tensor([[of, 5, of]])
        return torch.sparse_coo_tensor(rows, torch.ones(3, 2) * (of + 1), (8, 2))

    mine = sparse(rank)
    dist.all_reduce(mine)
    wanted = functools.reduce(operator.add, [sparse(of).to_dense() for of in range(size)])
    same(mine.to_dense(), wanted)
    with pytest.raises(ValueError, match="SUM only"):
        dist.all_reduce(sparse(rank), dist.ReduceOp.MAX)


def test_broadcast_moves_every_type() -> None:
    rank, size = world()
    for root in range(size):
        for dtype in MOVED:
            mine = values((2, 3), torch.uint8, rank, root).to(dtype)
            dist.broadcast(mine, src=root)
            same(mine, values((2, 3), torch.uint8, root, root).to(dtype), dtype)
    column = torch.zeros(4, 3)
    column[:, 1] = rank
    dist.broadcast(column[:, 1], src=size - 1)
    same(column, torch.tensor([[0.0, size - 1, 0.0]] * 4))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_gather(shape: tuple[int, ...]) -> None:
    rank, size = world()
    for dtype in (torch.float32, torch.bool, torch.float8_e4m3fn):
        tensors = [t.to(dtype) for t in given(shape, torch.uint8)]
        parts = [torch.empty(shape, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, tensors[rank])
        for got, wanted in zip(parts, tensors, strict=True):
            same(got, wanted)
        stacked = torch.empty((size, *shape), dtype=dtype)
        dist.all_gather_into_tensor(stacked, tensors[rank])
        same(stacked, torch.stack(tensors))


def test_all_gather_of_uneven_parts() -> None:
    rank, size = world()
    tensors = [values((of, 2), torch.int32, of) for of in range(size)]
    parts = [torch.zeros_like(tensor) for tensor in tensors]
    dist.all_gather(parts, tensors[rank])
    for got, wanted in zip(parts, tensors, strict=True):
        same(got, wanted)


def test_all_gather_coalesced() -> None:
    rank, size = world()
    first, second = given((2, 2), torch.float32), given((3,), torch.float32, 1)
    lists = [[torch.empty(2, 2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [first[rank], second[rank]])
    for of in range(size):
        same(lists[of][0], first[of])
        same(lists[of][1], second[of])
    outputs = [torch.empty(size * 2, 2), torch.empty(size * 3)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(outputs[0], first[rank])
        dist.all_gather_into_tensor(outputs[1], second[rank])
    same(outputs[0], torch.cat(first))
    same(outputs[1], torch.cat(second))


def test_objects_travel() -> None:
    rank, size = world()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": of, "text": "x" * of} for of in range(size)]
    box = [rank] if rank else ["from rank 0"]
    dist.broadcast_object_list(box)
    assert box == ["from rank 0"]


@pytest.mark.parametrize("op", ["SUM", "MIN", "MAX", "PRODUCT", "AVG"])
def test_reduce_scatter(op: str) -> None:
    rank, size = world()
    tensors = given((size, 4), torch.float64)
    full = folded("SUM" if op == "AVG" else op, tensors) / (size if op == "AVG" else 1)
    reduction = getattr(dist.ReduceOp, op)
    output = torch.empty(4, dtype=torch.float64)
    dist.reduce_scatter_tensor(output, tensors[rank].reshape(-1), reduction)
    assert np.allclose(output.numpy(), full[rank])
    output.zero_()
    dist.reduce_scatter(output, list(tensors[rank]), reduction)
    assert np.allclose(output.numpy(), full[rank])


def test_reduce_scatter_coalesced_and_in_place() -> None:
    rank, size = world()
    first, second = given((size, 3), torch.float32), given((size, 2), torch.float32, 1)
    outputs = [torch.empty(3), torch.empty(2)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(outputs[0], first[rank].reshape(-1))
        dist.reduce_scatter_tensor(outputs[1], second[rank].reshape(-1))
    same(outputs[0], folded("SUM", first)[rank])
    same(outputs[1], folded("SUM", second)[rank])
    large = values((size, 200_000), torch.float32, rank, 7)
    dist.reduce_scatter_tensor(large[rank], large)
    same(large[rank], folded("SUM", given((size, 200_000), torch.float32, 7))[rank])


def test_all_to_all_single() -> None:
    rank, size = world()
    tensors = given((size * 2, 3), torch.int64)
    output = torch.empty(size * 2, 3, dtype=torch.int64)
    dist.all_to_all_single(output, tensors[rank])
    same(output, torch.cat([t[2 * rank : 2 * rank + 2] for t in tensors]))
    # Rank r sends r + to rows to rank `to`.
    give = [rank + to for to in range(size)]
    take = [of + rank for of in range(size)]
    rows = [values((sum(of + to for to in range(size)), 2), torch.float32, of)
            for of in range(size)]  # fmt: skip
    output = torch.empty(sum(take), 2)
    dist.all_to_all_single(output, rows[rank], take, give)
    first = [sum(of + to for to in range(rank)) for of in range(size)]
    wanted = [rows[of][first[of] : first[of] + of + rank] for of in range(size)]
    same(output, torch.cat(wanted))


def test_all_to_all_of_lists() -> None:
    rank, size = world()
    inputs = [torch.full((rank + 1, to + 1), 10.0 * rank + to) for to in range(size)]
    outputs = [torch.empty(of + 1, rank + 1) for of in range(size)]
    dist.all_to_all(outputs, inputs)
    for of in range(size):
        same(outputs[of], torch.full((of + 1, rank + 1), 10.0 * of + rank))


@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_reduce_gather_and_scatter(count: int) -> None:
    rank, size = world()
    tensors = given((count,), torch.float32)
    for root in range(size):
        mine = tensors[rank].clone()
        dist.reduce(mine, dst=root)
        if rank == root:
            same(mine, folded("SUM", tensors))
        parts = [torch.empty(count) for _ in range(size)] if rank == root else None
        dist.gather(tensors[rank], parts, dst=root)
        for got, wanted in zip(parts or [], tensors, strict=rank == root):
            same(got, wanted)
        output = torch.empty(count)
        dist.scatter(output, list(tensors) if rank == root else None, src=root)
        same(output, tensors[rank])


def test_reduce_with_other_operations_and_types() -> None:
    rank, size = world()
    for dtype in (torch.int8, torch.bfloat16, torch.float64):
        for op in ("MIN", "MAX", "PRODUCT"):
            tensors = [t.abs() % 3 for t in given((11,), dtype)]
            mine = tensors[rank].clone()
            dist.reduce(mine, dst=size - 1, op=getattr(dist.ReduceOp, op))
            if rank == size - 1:
                same(mine, folded(op, tensors), (dtype, op))


def test_work_and_futures() -> None:
    rank, _ = world()
    tensors = given((4,), torch.float32)
    works = []
    for _ in range(20):
        mine = tensors[rank].clone()
        works.append((mine, dist.all_reduce(mine, async_op=True)))
    for mine, work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success()
        same(mine, folded("SUM", tensors))
    mine = tensors[rank].clone()
    work = dist.all_reduce(mine, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    same(future.wait(), torch.from_numpy(folded("SUM", tensors) * 2).float())

    def sum_again(done: torch.futures.Future) -> list[torch.Tensor]:
        # Waits in a callback for the callback of another call.
        again = [done.value()[0].clone()]
        return dist.all_reduce(again[0], async_op=True).get_future().wait() and again

    work = dist.all_reduce(tensors[rank].clone(), async_op=True)
    thrice = work.get_future().then(sum_again).then(sum_again).wait()[0]
    same(thrice, folded("SUM", tensors) * dist.get_world_size() ** 2)
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        pass
    # Of many calls whose inputs Python has as well, polled while other threads settle them.
    for _ in range(5):
        inputs = [torch.full((3,), float(rank)) for _ in range(50)]
        whole = [torch.empty(3 * dist.get_world_size()) for _ in inputs]
        works = [
            dist.all_gather_into_tensor(result, mine, async_op=True)
            for result, mine in zip(whole, inputs, strict=True)
        ]
        while not all(work.is_completed() for work in works):
            pass
        expected = torch.arange(dist.get_world_size()).repeat_interleave(3).float()
        assert all(torch.equal(result, expected) for result in whole)


def test_barriers() -> None:
    world()
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20))


def test_one_engine_serves_both_frontends() -> None:
    _, size = world()
    before = hvd.counters()["submissions"]
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert hvd.allreduce(tensor, op=hvd.Sum, name="shared").tolist() == [size * size] * 3
    assert hvd.counters()["submissions"] >= before + 2
    assert dist.get_backend() == "horoacc"
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())


def test_tensors_of_other_devices_are_refused() -> None:
    world()
    # Who asks for "horoacc" alone gets it for CUDA tensors too, which have no other backend then.
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    with pytest.raises(ValueError, match="neither in CPU memory nor on a CUDA GPU"):
        backend.allreduce([torch.empty(3, device="meta")])
    dist.barrier()
