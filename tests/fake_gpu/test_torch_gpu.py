"""CUDA tensors in horoacc.torch and torch.distributed, on a GPU that the host plays.

The fake GPU's memory cannot be touched by the host, its streams are late, and its allocator gives
memory away again at once: who does not wait for the right event gets wrong numbers, or dies.
"""

from __future__ import annotations

import sys
from typing import Any

import fake_gpu
import numpy as np
import pytest
import torch
import torch.distributed as dist

import horoacc.torch as hvd

sys.path.append(str(fake_gpu.ROOT / "tests/gpu"))
import check_collectives

PLUGIN = {"HOROACC_CUDA_PLUGIN": str(fake_gpu.plugin())}
pytestmark = pytest.mark.ranks(1, 2, 3, framework="horoacc.torch", env=PLUGIN)
CPU_REDUCE = pytest.param({"HOROACC_GPU_MODE": "cpu_reduce"}, id="host")
HOSTS = pytest.param(
    {"HOROACC_SIMULATED_HOSTS": "2+1"}, id="hosts", marks=pytest.mark.only_ranks(3)
)

# Chunks of which every tensor of a few KB has several.
CHUNKS = {"HOROACC_GPU_CHUNK_BYTES": "4096", "HOROACC_LAST_ARRIVER_BYTES": "0"}
IN_CHUNKS = [
    pytest.param({**CHUNKS, "HOROACC_GPU_MODE": "cpu_reduce"}, id="chunks"),
    pytest.param({**CHUNKS, "HOROACC_SIMULATED_HOSTS": "2+1", "HOROACC_REDUCTION": "canonical",
                  "HOROACC_WINDOW_BYTES": "16384"},
                 id="chunks_of_hosts", marks=pytest.mark.only_ranks(3)),
]  # fmt: skip


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draw = np.random.default_rng([len(shape), rank])
    return torch.from_numpy(draw.integers(-8, 9, shape)).to(dtype)


def on_gpu(*args: Any) -> torch.Tensor:
    return values(*args).to("cuda")


def total(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.stack([values(rank, shape) for rank in range(hvd.size())]).sum(0)


def every(shape: tuple[int, ...]) -> list[torch.Tensor]:
    return [values(rank, shape) for rank in range(hvd.size())]


@pytest.mark.parametrize("env", IN_CHUNKS)
def test_chunks_are_exact_and_have_the_cpus_bits() -> None:
    gpu = fake_gpu.install()
    check_collectives.COUNTS = (1023, 20_003)
    check_collectives.reductions_are_exact()
    draw = np.random.default_rng(hvd.rank())
    factors = {"prescale_factor": 0.3, "postscale_factor": 1.7}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = [torch.from_numpy(draw.standard_normal(n)).to(dtype) for n in (4097, 3, 30_001)]
        wanted = [hvd.allreduce(x, op=hvd.Average, **factors) for x in given]
        with gpu.stream():
            there = [x.to("cuda") for x in given]
            found = hvd.grouped_allreduce(there, op=hvd.Average, **factors)
            handles = [hvd.allreduce_async_(x, op=hvd.Average, name=f"{k}.{dtype}", **factors)
                       for k, x in enumerate(there)]  # fmt: skip
            found += [hvd.synchronize(handle) for handle in handles]
            for one, other in zip(found, [*wanted, *wanted], strict=True):
                assert torch.equal(one.cpu(), other)
    assert gpu.unpinned_bytes == 0


@pytest.mark.parametrize("env", [CPU_REDUCE, HOSTS, pytest.param({}, id="leader")])
def test_every_call_of_horovod() -> None:
    gpu = fake_gpu.install()
    rank, size = hvd.rank(), hvd.size()
    for shape in ((7,), (3, 50001)):
        with gpu.stream():
            given = on_gpu(rank, shape) * 2  # runs on the stream, and is not waited for
            assert torch.equal(hvd.allreduce(given, op=hvd.Sum).cpu(), 2 * total(shape))
            assert torch.equal(given.cpu(), 2 * values(rank, shape))
            hvd.allreduce_(given, op=hvd.Sum, name="in_place")
            assert torch.equal((given + 1).cpu(), 2 * total(shape) + 1)
            pair = hvd.grouped_allreduce([on_gpu(rank, shape), on_gpu(rank, (5,))], op=hvd.Sum)
            assert torch.equal(pair[0].cpu(), total(shape))
            assert torch.equal(pair[1].cpu(), total((5,)))
            handles = [hvd.allreduce_async_(on_gpu(rank, shape), name=f"t{k}", op=hvd.Max)
                       for k in range(5)]  # fmt: skip
            for handle in reversed(handles):
                largest = torch.stack(every(shape)).amax(0)
                assert torch.equal(hvd.synchronize(handle).cpu(), largest)
            gathered = hvd.allgather(on_gpu(rank, (rank + 1, 4)))
            assert gathered.is_cuda
            assert torch.equal(gathered.cpu(),
                               torch.cat([values(r, (r + 1, 4)) for r in range(size)]))  # fmt: skip
            for root in range(size):
                sent = on_gpu(rank, shape)
                assert torch.equal(hvd.broadcast(sent, root).cpu(), values(root, shape))
                assert torch.equal(hvd.broadcast_(sent, root).cpu(), values(root, shape))
            rows = on_gpu(rank, (2 * size, 3))
            taken, counts = hvd.alltoall(rows, [2] * size)
            assert taken.is_cuda
            assert counts.tolist() == [2] * size
            parts = [values(r, (2 * size, 3))[2 * rank : 2 * rank + 2] for r in range(size)]
            assert torch.equal(taken.cpu(), torch.cat(parts))
            shard = hvd.reducescatter(rows, op=hvd.Sum)
            assert torch.equal(shard.cpu(), total((2 * size, 3))[2 * rank : 2 * rank + 2])
    assert gpu.unpinned_bytes == 0


def test_results_are_there_on_the_stream_where_they_are_asked_for() -> None:
    gpu = fake_gpu.install()
    handle = hvd.allreduce_async(on_gpu(hvd.rank(), (1000,)), op=hvd.Sum, name="elsewhere")
    with gpu.stream():
        assert torch.equal((hvd.synchronize(handle) + 1).cpu(), total((1000,)) + 1)
    # Not joined: its memory must not be used again while a copy to it is pending.
    for step in range(20):
        hvd.allreduce_async(on_gpu(hvd.rank(), (3000,)), name=f"left{step}")
        kept = on_gpu(hvd.rank(), (3000,))
        assert torch.equal((kept + 1).cpu(), values(hvd.rank(), (3000,)) + 1)


@pytest.mark.only_ranks(2)
def test_what_cannot_work_is_said_on_all_ranks() -> None:
    fake_gpu.install()
    here = torch.ones(4)
    with pytest.raises(hvd.HorovodInternalError, match="mismatched device"):
        hvd.allreduce(here.to("cuda") if hvd.rank() == 0 else here, name="mixed")
    with pytest.raises((ValueError, hvd.HorovodInternalError), match="lie on different devices"):
        hvd.grouped_allreduce([here.to("cuda"), here if hvd.rank() == 0 else here.to("cuda")],
                              name="group")  # fmt: skip
    assert hvd.allreduce(here.to("cuda"), op=hvd.Sum).cpu().tolist() == [2.0] * 4


def test_steps_of_an_optimizer() -> None:
    fake_gpu.install()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Linear(20, 2)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    wanted = [param.detach().cpu().clone() for param in model.parameters()]
    momenta = [torch.zeros_like(param) for param in wanted]
    for step in range(3):
        for index, param in enumerate(model.parameters()):
            param.grad = on_gpu(hvd.rank() + step, tuple(param.shape))
            given = [values(r + step, tuple(param.shape)) for r in range(hvd.size())]
            momenta[index] = 0.5 * momenta[index] + torch.stack(given).mean(0)
            wanted[index] = wanted[index] - 0.5 * momenta[index]
        optimizer.step()
    for param, value in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(param.detach().cpu(), value)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for state in optimizer.state_dict()["state"].values():
        assert state["momentum_buffer"].is_cuda


def test_every_call_of_torch_distributed() -> None:
    gpu = fake_gpu.install()
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    rank, size = dist.get_rank(), dist.get_world_size()
    shape = (4, 1001)
    with gpu.stream():
        mine = on_gpu(rank, shape)
        dist.all_reduce(mine)
        assert torch.equal((mine + 1).cpu(), total(shape) + 1)
        across = on_gpu(rank, shape).t()  # no contiguous memory
        dist.all_reduce(across)
        assert torch.equal(across.cpu(), total(shape).t())
        works = [dist.all_reduce(tensor, async_op=True)
                 for tensor in [on_gpu(rank, shape) for _ in range(4)]]  # fmt: skip
        for work in works:
            work.wait()
            assert torch.equal(work.result()[0].cpu(), total(shape))
        future = dist.all_reduce(on_gpu(rank, shape), async_op=True).get_future()
        assert torch.equal((future.wait()[0] + 1).cpu(), total(shape) + 1)
        parts = [torch.empty(shape, device="cuda") for _ in range(size)]
        dist.all_gather(parts, on_gpu(rank, shape))
        for part, wanted in zip(parts, every(shape), strict=True):
            assert torch.equal(part.cpu(), wanted)
        ragged = [torch.empty(r + 1, device="cuda") for r in range(size)]
        dist.all_gather(ragged, on_gpu(rank, (rank + 1,)))
        for r, part in enumerate(ragged):
            assert torch.equal(part.cpu(), values(r, (r + 1,)))
        whole = torch.empty((size * 4, 1001), device="cuda")
        dist.all_gather_into_tensor(whole, on_gpu(rank, shape))
        assert torch.equal(whole.cpu(), torch.cat(every(shape)))
        rows = on_gpu(rank, (4 * size, 5))
        shard = torch.empty((4, 5), device="cuda")
        dist.reduce_scatter_tensor(shard, rows)
        assert torch.equal(shard.cpu(), total((4 * size, 5))[4 * rank : 4 * rank + 4])
        swapped = torch.empty_like(rows)
        dist.all_to_all_single(swapped, rows)
        wanted = [x[4 * rank : 4 * rank + 4] for x in every((4 * size, 5))]
        assert torch.equal(swapped.cpu(), torch.cat(wanted))
        sent = on_gpu(rank, shape)
        dist.broadcast(sent, size - 1)
        assert torch.equal(sent.cpu(), values(size - 1, shape))
        if size > 1:
            if rank == 0:
                dist.send(on_gpu(rank, shape), 1)
            elif rank == 1:
                got = torch.empty(shape, device="cuda")
                dist.recv(got, 0)
                assert torch.equal(got.cpu(), values(0, shape))
        dist.barrier()


@pytest.mark.only_ranks(2, 3)
@pytest.mark.parametrize("env", [CPU_REDUCE, pytest.param({}, id="leader")])
def test_every_other_call() -> None:
    fake_gpu.install()
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    rank, size, shape = hvd.rank(), hvd.size(), (3, 7)
    last = size - 1
    # To one rank, and from one.
    mine = on_gpu(rank, shape)
    dist.reduce(mine, last, op=dist.ReduceOp.MAX)
    if rank == last:
        assert torch.equal(mine.cpu(), torch.stack(every(shape)).amax(0))
    parts = [torch.empty(shape, device="cuda") for _ in range(size)] if rank == last else None
    dist.gather(on_gpu(rank, shape), parts, dst=last)
    for part, wanted in zip(parts or (), every(shape), strict=parts is not None):
        assert torch.equal(part.cpu(), wanted)
    taken = torch.empty(shape, device="cuda")
    dist.scatter(taken, [on_gpu(r, shape) for r in range(size)] if rank == last else None, src=last)
    assert torch.equal(taken.cpu(), values(rank, shape))
    # Lists of tensors.
    dist.reduce_scatter(taken, [on_gpu(rank + r, shape) for r in range(size)])
    everybody = [values(r + rank, shape) for r in range(size)]
    assert torch.equal(taken.cpu(), torch.stack(everybody).sum(0))
    uneven = [torch.empty(r + 1, device="cuda") for r in range(size)]
    dist.all_to_all(uneven, [on_gpu(rank, (rank + 1,)) for _ in range(size)])
    for r, part in enumerate(uneven):
        assert torch.equal(part.cpu(), values(r, (r + 1,)))
    pair = [on_gpu(rank, shape), on_gpu(rank, (5,))]
    dist.all_reduce_coalesced(pair)
    assert torch.equal(pair[0].cpu(), total(shape)) and torch.equal(pair[1].cpu(), total((5,)))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    if rank < 2:
        got = torch.empty(shape, device="cuda")
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, on_gpu(rank, shape), 1 - rank),
                                            dist.P2POp(dist.irecv, got, 1 - rank)]):  # fmt: skip
            work.wait()
        assert torch.equal(got.cpu(), values(1 - rank, shape))
    # Horovod's.
    for found, at in zip(hvd.grouped_allgather([on_gpu(rank, shape), on_gpu(rank, (2,))]),
                         (shape, (2,)), strict=True):  # fmt: skip
        assert torch.equal(found.cpu(), torch.cat(every(at)))
    rows = (2 * size, 3)
    for found in hvd.grouped_reducescatter([on_gpu(rank, rows), on_gpu(rank, rows)], op=hvd.Sum):
        assert torch.equal(found.cpu(), total(rows)[2 * rank : 2 * rank + 2])
    splits = [r + 1 for r in range(size)]
    given = on_gpu(rank, (sum(splits), 2))
    swapped, counts = hvd.alltoall(given, splits)
    first = sum(splits[:rank])
    assert counts.tolist() == [rank + 1] * size
    pieces = [values(r, (sum(splits), 2))[first : first + rank + 1] for r in range(size)]
    assert torch.equal(swapped.cpu(), torch.cat(pieces))
    assert hvd.allreduce(on_gpu(rank, shape), op=hvd.Adasum).is_cuda
    half = hvd.allreduce(on_gpu(rank, shape), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32 and torch.equal(half.cpu(), total(shape))
    assert hvd.broadcast_object(rank, last) == last
    if rank == 0:
        alone = hvd.allreduce(on_gpu(rank, shape), op=hvd.Sum, name="joined")
        assert torch.equal(alone.cpu(), values(0, shape))
        alone = hvd.allreduce(on_gpu(rank, shape), op=hvd.Adasum, name="joined")
        assert torch.equal(alone.cpu(), values(0, shape))
    assert 0 <= hvd.join() < size


@pytest.mark.only_ranks(2)
def test_what_is_checked_on_a_gpu() -> None:
    fake_gpu.install()
    check_collectives.COUNTS = (1000,)
    check_collectives.reductions_are_exact()
    check_collectives.movements_are_exact()
