"""Modes in which GPUs reduce, on the GPU that the host plays, whose kernels are those of GPUs.

Every rank is a process; memory, events and words are shared between them as CUDA's are.
"""

from __future__ import annotations

import math
import os
import sys
import time

import fake_gpu
import numpy as np
import pytest
import torch
import torch.distributed as dist

import horoacc
import horoacc.torch as hvd
from horoacc import cuda_plugin
from horoacc.errors import ConfigError

sys.path.append(str(fake_gpu.ROOT / "tests/gpu"))
import check_collectives

PLUGIN = {"HOROACC_CUDA_PLUGIN": str(fake_gpu.plugin())}
# A small buffer, so that tensors go through it in several windows.
LEADER = {"HOROACC_GPU_MODE": "leader", "HOROACC_FUSION_THRESHOLD": "65536"}
STREAM = {"HOROACC_GPU_MODE": "stream", "HOROACC_FUSION_THRESHOLD": "65536"}
# Ranks that share a GPU may have kernels that wait for each other if MPS runs them at once.
KERNEL = {"HOROACC_GPU_MODE": "kernel", "HOROACC_FUSION_THRESHOLD": "65536", "FAKE_CUDA_MPS": "1"}
NCCL = {
    "HOROACC_GPU_MODE": "nccl",
    "HOROACC_FUSION_THRESHOLD": "65536",
    "HOROACC_NCCL_LIBRARY": str(fake_gpu.nccl()),
}
SETS = [pytest.param(LEADER, id="leader"), pytest.param(STREAM, id="stream")]
MODES = [*SETS, pytest.param(KERNEL, id="kernel")]
pytestmark = pytest.mark.ranks(2, 4, framework="horoacc.torch", env=PLUGIN)


def reduced(mode: str) -> int:
    """Bytes that the GPUs of this rank have reduced in a mode."""
    return horoacc.counters()[f"gpu_{mode}_bytes"]


@pytest.mark.parametrize("env", MODES)
def test_every_type_and_operation() -> None:
    fake_gpu.install()
    fetched = horoacc.counters()["gpu_bytes"]
    before = reduced(os.environ["HOROACC_GPU_MODE"])
    check_collectives.COUNTS = (1, 20_003)
    check_collectives.reductions_are_exact()
    assert reduced(os.environ["HOROACC_GPU_MODE"]) > before
    assert horoacc.counters()["gpu_bytes"] == fetched, "nothing went through the host"


@pytest.mark.only_ranks(4)
@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"HOROACC_SIMULATED_HOSTS": hosts, "HOROACC_FUSION_THRESHOLD": "65536"},
                     id=hosts)
        for hosts in ("2+2", "3+1")
    ],
)  # fmt: skip
def test_gpus_add_up_inside_each_of_several_hosts() -> None:
    fake_gpu.install()
    before = reduced("composed")
    check_collectives.COUNTS = (1, 20_003)
    check_collectives.reductions_are_exact()
    assert reduced("composed") > before


@pytest.mark.parametrize("env", MODES)
def test_the_bits_are_the_cpus() -> None:
    gpu = fake_gpu.install()
    draw = np.random.default_rng(hvd.rank())
    fetched = horoacc.counters()["gpu_bytes"]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
                  torch.complex128):  # fmt: skip
        parts = 2 if dtype.is_complex else 1
        drawn = [torch.from_numpy(draw.standard_normal((n, parts))) for n in (3, 30_001, 70_000)]
        given = [(torch.view_as_complex(x) if parts == 2 else x[:, 0]).to(dtype) for x in drawn]
        factors = {"prescale_factor": 0.3, "postscale_factor": 1.7}
        wanted = [hvd.allreduce(x, op=hvd.Average, **factors) for x in given]
        with gpu.stream():
            there = [x.to("cuda") for x in given]
            found = hvd.grouped_allreduce(there, op=hvd.Average, **factors)
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one.cpu(), other)
            handles = [hvd.allreduce_async_(x, op=hvd.Average, name=f"{k}.{dtype}", **factors)
                       for k, x in enumerate(there)]  # fmt: skip
            for handle, other in reversed(list(zip(handles, wanted, strict=True))):
                assert torch.equal(hvd.synchronize(handle).cpu(), other)
    there = torch.full((300,), complex(0, 1 + hvd.rank())).to("cuda")
    found = hvd.allreduce(there, op=hvd.Product)  # not the product of the parts
    assert found.cpu().tolist() == [1j ** hvd.size() * math.factorial(hvd.size())] * 300
    assert horoacc.counters()["gpu_bytes"] == fetched, "nothing went through the host"


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(NCCL, id="nccl"),
        pytest.param(NCCL | {"HOROACC_SIMULATED_HOSTS": "each"}, id="each"),
        pytest.param(NCCL | {"HOROACC_SIMULATED_HOSTS": "3+1"}, id="3+1",
                     marks=pytest.mark.only_ranks(4)),
    ],
)  # fmt: skip
def test_nccl_reduces_what_it_can_and_the_cpu_the_rest() -> None:
    gpu = fake_gpu.install()
    library = os.environ["HOROACC_NCCL_LIBRARY"]
    assert cuda_plugin.nccl(library) == f"2.27.7 ({library})"
    before = horoacc.counters()
    check_collectives.COUNTS = (1, 20_003)
    check_collectives.reductions_are_exact()
    after = horoacc.counters()
    assert after["gpu_nccl_bytes"] > before["gpu_nccl_bytes"]
    assert after["gpu_bytes"] > before["gpu_bytes"], "int16, bool, averages of integers"
    draw = np.random.default_rng(hvd.rank())
    factors = {"prescale_factor": 0.3, "postscale_factor": 1.7}
    for dtype, accuracy in ((torch.float16, 4e-3), (torch.bfloat16, 3e-2), (torch.float32, 1e-5),
                            (torch.float64, 1e-13)):  # fmt: skip
        given = [torch.from_numpy(draw.standard_normal(n)).to(dtype) for n in (3, 30_001, 70_000)]
        wanted = [hvd.allreduce(x.double(), op=hvd.Average, **factors) for x in given]
        with gpu.stream():
            found = hvd.grouped_allreduce([x.to("cuda") for x in given], op=hvd.Average, **factors)
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one.cpu().double(), other, rtol=accuracy, atol=accuracy)
    sent = hvd.broadcast(torch.full((5000,), hvd.rank() + 1.0).to("cuda"), 1)
    assert sent.cpu().tolist() == [2.0] * 5000


@pytest.mark.parametrize("env", MODES)
def test_other_collectives_go_from_gpu_to_gpu() -> None:
    fake_gpu.install()
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    rank, size = hvd.rank(), hvd.size()
    everybody = [torch.arange(9001 * size) % 1000 * (r + 1) for r in range(size)]
    mine = everybody[rank].to("cuda")
    part = slice(9001 * rank, 9001 * (rank + 1))
    before = horoacc.counters()
    for root in range(size):
        assert torch.equal(hvd.broadcast(mine, root).cpu(), everybody[root])
    whole = torch.empty(size * mine.numel(), dtype=torch.int64).to("cuda")
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.cpu(), torch.cat(everybody))
    shard = torch.empty(9001, dtype=torch.int64).to("cuda")
    dist.reduce_scatter_tensor(shard, mine, op=dist.ReduceOp.MAX)
    assert torch.equal(shard.cpu(), torch.stack(everybody).amax(0)[part])
    swapped = torch.empty_like(mine)
    dist.all_to_all_single(swapped, mine)
    assert torch.equal(swapped.cpu(), torch.cat([x[part] for x in everybody]))
    for root in range(size):
        takes = rank == root
        parts = [torch.empty_like(mine) for _ in range(size)]
        dist.gather(mine, parts if takes else None, dst=root)
        assert not takes or torch.equal(torch.stack(parts).cpu(), torch.stack(everybody))
        dist.scatter(shard, [x[part].to("cuda") for x in everybody] if takes else None, src=root)
        assert torch.equal(shard.cpu(), everybody[rank][9001 * root : 9001 * (root + 1)])
        least = mine.clone()
        dist.reduce(least, dst=root, op=dist.ReduceOp.MIN)
        wanted = torch.stack(everybody).amin(0) if takes else everybody[rank]
        assert torch.equal(least.cpu(), wanted)
    phases = [x * (1 - 2j) for x in everybody]  # complex64
    spread = torch.empty(9001, dtype=torch.complex64).to("cuda")
    dist.reduce_scatter_tensor(spread, phases[rank].to("cuda"))
    assert torch.equal(spread.cpu(), torch.stack(phases).sum(0)[part])
    turns = torch.full((9001 * size,), 1j ** (rank + 1)).to("cuda")
    dist.reduce_scatter_tensor(spread, turns, op=dist.ReduceOp.PRODUCT)
    assert spread.cpu().tolist() == [1j ** (size * (size + 1) // 2)] * 9001
    uneven = torch.cat((everybody[rank], torch.ones(1, dtype=torch.int64)))  # a row more for rank 0
    found = hvd.reducescatter(uneven.to("cuda"), op=hvd.Sum).cpu()
    first = 9001 * rank + (rank > 0)
    wanted = torch.cat((torch.stack(everybody).sum(0), torch.tensor([size])))
    assert torch.equal(found, wanted[first : first + 9001 + (rank == 0)])
    moved = (3 * size + 5) * mine.nbytes + size * shard.nbytes + uneven.nbytes
    # Results that the engine allocates, and ranks with more than the others.
    for _ in range(2):  # in memory that was used before
        gathered = hvd.allgather(mine[: 10 * (rank + 1)])
        firsts = [x[: 10 * (r + 1)] for r, x in enumerate(everybody)]
        assert gathered.is_cuda and torch.equal(gathered.cpu(), torch.cat(firsts))
        moved += 80 * (rank + 1)
    pair = hvd.grouped_allgather([mine, mine[:0]])
    assert torch.equal(pair[0].cpu(), torch.cat(everybody)) and pair[1].numel() == 0
    assert torch.equal(hvd.alltoall(mine).cpu(), torch.cat([x[part] for x in everybody]))
    taken = [torch.empty_like(x).to("cuda") for x in firsts]
    dist.all_gather(taken, mine[: 10 * (rank + 1)])
    assert all(torch.equal(one.cpu(), x) for one, x in zip(taken, firsts, strict=True))
    moved += 2 * mine.nbytes + 80 * (rank + 1)
    counts = [100 * (r + 1) for r in range(size)]
    dist.all_to_all_single(
        took := torch.empty(size * counts[rank], dtype=torch.int64).to("cuda"),
        mine[: sum(counts)], [counts[rank]] * size, counts,
    )  # fmt: skip
    first = sum(counts[:rank])
    assert torch.equal(took.cpu(), torch.cat([x[first : first + counts[rank]] for x in everybody]))
    moved += 8 * sum(counts)
    after = horoacc.counters()
    assert after["gpu_moved_bytes"] - before["gpu_moved_bytes"] == moved
    assert after["gpu_bytes"] == before["gpu_bytes"], "nothing went through the host"


@pytest.mark.only_ranks(2)
@pytest.mark.parametrize(
    ("env", "mode"),
    [
        pytest.param({}, "leader", id="one_gpu"),
        pytest.param({"FAKE_GPU_EACH": "1"}, "stream", id="a_gpu_each"),
        pytest.param({"FAKE_GPU_EACH": "1", "FAKE_CUDA_EXCLUSIVE": "1"}, "kernel", id="owned"),
        pytest.param({"FAKE_GPU_EACH": "1", "FAKE_CUDA_NO_PEERS": "1"}, "cpu", id="no_way"),
        pytest.param({"FAKE_CUDA_SHARES_NOTHING": "1"}, "cpu", id="nothing_shared"),
    ],
)
def test_what_the_ranks_agree_on(mode: str) -> None:
    fake_gpu.install()
    device = f"cuda:{hvd.rank() % 2 if 'FAKE_GPU_EACH' in os.environ else 0}"
    before = {name: reduced(name) for name in ("leader", "stream", "kernel")}
    moved = reduced("moved")
    sent = hvd.broadcast(torch.full((5000,), hvd.rank() + 1.0).to(device), 1)
    assert sent.cpu().tolist() == [2.0] * 5000
    assert reduced("moved") - moved == (0 if mode == "cpu" else 20_000)
    for _ in range(2):
        found = hvd.allreduce(torch.full((5000,), hvd.rank() + 1.0).to(device), op=hvd.Sum)
        assert found.cpu().tolist() == [3.0] * 5000
    for name, bytes_before in before.items():
        assert reduced(name) - bytes_before == (40_000 if name == mode else 0)


@pytest.mark.only_ranks(2)
@pytest.mark.parametrize(
    ("env", "why"),
    [
        pytest.param({"HOROACC_GPU_MODE": "leader"}, "have different GPUs", id="leader"),
        pytest.param({"HOROACC_GPU_MODE": "stream", "FAKE_CUDA_NO_WORDS": "1"},
                     "no memory operations on streams", id="stream"),
        pytest.param({"HOROACC_GPU_MODE": "stream", "FAKE_CUDA_NO_PEERS": "1"},
                     "rank 0 of the process set: GPU 0: no way to that GPU", id="no_way"),
        pytest.param({"HOROACC_GPU_MODE": "kernel", "FAKE_GPU_EACH": "0"},
                     "share a GPU .fake:0., where kernels of two processes never run at once",
                     id="kernel"),
        pytest.param({"HOROACC_GPU_MODE": "nccl", "HOROACC_NCCL_LIBRARY": "/nowhere/nccl.so"},
                     "rank 0 of the process set: NCCL cannot be loaded: /nowhere/nccl.so",
                     id="no_nccl"),
        pytest.param({"HOROACC_GPU_MODE": "nccl", "HOROACC_NCCL_LIBRARY": "/nowhere/nccl.so",
                      "HOROACC_SIMULATED_HOSTS": "1+1"},
                     "rank [01] of the process set: NCCL cannot be loaded: /nowhere/nccl.so",
                     id="no_nccl_on_hosts"),
        pytest.param(NCCL | {"HOROACC_SIMULATED_HOSTS": "1+1", "HOST_NCCL_VERSION": "1"},
                     "rank 0 of the process set has NCCL 2.27.7, rank 1 has 2.26.5",
                     id="another_nccl_on_hosts"),
        pytest.param({"HOROACC_GPU_MODE": "stream", "HOROACC_SIMULATED_HOSTS": "1+1"},
                     "do not all share a host", id="hosts"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_on_all_ranks(why: str) -> None:
    fake_gpu.install()
    device = 0 if os.environ.get("FAKE_GPU_EACH") == "0" else hvd.rank()
    tensor = torch.ones(100).to(f"cuda:{device}")
    if "HOST_NCCL_VERSION" in os.environ:
        os.environ["HOST_NCCL_VERSION"] = ("22707", "22605")[hvd.rank()]
    with pytest.raises(ConfigError, match=why):
        hvd.allreduce(tensor, op=hvd.Sum)
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3


@pytest.mark.only_ranks(4)
@pytest.mark.parametrize("env", [*MODES, pytest.param(NCCL, id="nccl")])
def test_process_sets_have_gpu_groups_of_their_own() -> None:
    fake_gpu.install()
    for _ in range(2):
        own = hvd.add_process_set([1, 3])
        for ranks in (own, hvd.global_process_set):
            if not ranks.included():
                continue
            before = reduced(os.environ["HOROACC_GPU_MODE"])
            found = hvd.allreduce(torch.ones(40_000).to("cuda"), op=hvd.Sum, process_set=ranks)
            assert found.cpu().tolist() == [float(ranks.size())] * 40_000
            assert reduced(os.environ["HOROACC_GPU_MODE"]) - before == 160_000
        hvd.remove_process_set(own)


@pytest.mark.only_ranks(4)
@pytest.mark.parametrize("env", [LEADER | {"HOROACC_SIMULATED_HOSTS": "2+2"}])
def test_sets_inside_one_of_several_hosts_have_modes() -> None:
    fake_gpu.install()
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    before = reduced("leader")
    mine = torch.ones(40_000, dtype=torch.bfloat16).to("cuda")
    found = hvd.allreduce(mine, op=hvd.Sum, process_set=sets[hvd.rank() // 2])
    assert found.cpu().tolist() == [2.0] * 40_000
    assert reduced("leader") - before == 80_000
    for each in sets:
        hvd.remove_process_set(each)


ONE_QUEUE = {"FAKE_CUDA_ONE_QUEUE": "1"}


@pytest.mark.only_ranks(2)
@pytest.mark.parametrize(
    "env",
    [
        pytest.param({**STREAM, **ONE_QUEUE}, id="stream"),
        pytest.param({**KERNEL, **ONE_QUEUE}, id="kernel"),
        pytest.param({**NCCL, **ONE_QUEUE}, id="nccl"),
    ],
)
def test_sets_at_work_at_once_share_a_hardware_queue() -> None:
    fake_gpu.install()
    before = reduced(os.environ["HOROACC_GPU_MODE"])
    check_collectives.sets_take_turns()
    assert reduced(os.environ["HOROACC_GPU_MODE"]) - before == 8 * 2 * 3 * 12_000


@pytest.mark.only_ranks(4)
@pytest.mark.parametrize("env", [pytest.param(STREAM, id="stream"), pytest.param(NCCL, id="nccl")])
def test_sets_of_other_ranks_have_their_turns_at_the_same_time() -> None:
    gpu = fake_gpu.install()
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[hvd.rank() // 2]
    mine = torch.ones(3000).to("cuda")
    dist.all_reduce(mine, group=own)
    assert mine.cpu().tolist() == [2.0] * 3000
    if hvd.rank() < 2:
        with gpu.stream():
            with gpu.hold():
                work = dist.all_reduce(mine, group=own, async_op=True)
                hvd.barrier()
                hvd.barrier()  # the others are through
            work.wait()
            assert mine.cpu().tolist() == [4.0] * 3000
    else:
        hvd.barrier()
        time.sleep(0.1)  # until the others have their turn
        dist.all_reduce(mine, group=own)
        assert mine.cpu().tolist() == [4.0] * 3000
        hvd.barrier()
    for group in groups:
        dist.destroy_process_group(group)
