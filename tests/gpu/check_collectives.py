"""Checks and times the collectives of CUDA tensors; run on every rank, which may share a GPU.

horoaccrun --tcp -np 4 python tests/gpu/check_collectives.py PART ...

A part is the name of a function below.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

import horoacc
import horoacc.torch as hvd
from horoacc.errors import ConfigError, HoroaccError

MIB = 1 << 20
OPS = {"sum": hvd.Sum, "average": hvd.Average, "min": hvd.Min, "max": hvd.Max,
       "product": hvd.Product}  # fmt: skip
DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
          torch.bfloat16, torch.float32, torch.float64)  # fmt: skip
COUNTS = (1, 1000, 262_147)
SIZES = (1, 16, 64, 256)
"""MiB."""
RESNET_50 = [9408, *[16384] * 8, *[36864] * 4, *[65536] * 12, *[147456] * 6, *[262144] * 20,
             *[589824] * 8, *[1048576] * 12, *[2359296] * 4, 2048000, 1000]  # fmt: skip
GPT_2_SMALL = [38597376, 786432, *[1769472, 2304, 589824, 768, 2359296, 3072, 2359296, 768] * 12]


def device() -> torch.device:
    """The GPU of this rank: one of its own, if there are enough."""
    return torch.device("cuda", hvd.local_rank() % max(1, torch.cuda.device_count()))


def given(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's input: small numbers, of which every sum and product is exact."""
    draw = np.random.default_rng([rank, count])
    low = 0 if dtype == torch.uint8 else -2
    return torch.from_numpy(draw.integers(low, 3, count)).to(dtype)


def oracle(op: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The result in float64, brought to the type as the CPU's collectives do."""
    all_ranks = np.stack([given(r, count, dtype).double().numpy() for r in range(hvd.size())])
    reduce = {"sum": np.sum, "average": np.mean, "min": np.min, "max": np.max, "product": np.prod}
    exact = reduce[op](all_ranks, axis=0)
    if dtype == torch.bool:
        return torch.from_numpy(exact != 0)
    if not dtype.is_floating_point:
        exact = np.trunc(exact)
    return torch.from_numpy(exact).to(dtype)


def reductions_are_exact() -> None:
    """Every type, operation and length, in place and not."""
    for dtype in DTYPES:
        for op, number in OPS.items():
            if dtype == torch.bool and op == "average":
                continue
            for count in COUNTS:
                mine = given(hvd.rank(), count, dtype).to(device())
                wanted = oracle(op, count, dtype)
                found = hvd.allreduce(mine, op=number)
                torch.testing.assert_close(found.cpu(), wanted, msg=f"{dtype} {op} {count}")
                hvd.allreduce_(mine, op=number)
                torch.testing.assert_close(mine.cpu(), wanted, msg=f"{dtype} {op} {count} in place")
    draw = np.random.default_rng(hvd.rank())
    for count in COUNTS:  # Adasum has the CPU's bits; products of complex numbers are exact here
        drawn = torch.from_numpy(draw.standard_normal((2, count)))
        for dtype in (*DTYPES[6:], torch.complex64, torch.complex128):
            parts = torch.complex(*drawn.round()) if dtype.is_complex else drawn[0]
            mine, number = parts.to(dtype), hvd.Product if dtype.is_complex else hvd.Adasum
            wanted = hvd.allreduce(mine, op=number)
            found = hvd.allreduce(mine.to(device()), op=number)
            assert torch.equal(found.cpu(), wanted), (dtype, count)


def movements_are_exact() -> None:
    """The other collectives, by both frontends; by GPUs if memory is given for the results."""
    before = horoacc.counters()["gpu_moved_bytes"]
    rank, size = hvd.rank(), hvd.size()
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    everybody = [given(r, 6000 * size, torch.float32) for r in range(size)]
    mine = everybody[rank].to(device())
    assert torch.equal(hvd.allgather(mine[: rank + 1]).cpu(),
                       torch.cat([x[: r + 1] for r, x in enumerate(everybody)]))  # fmt: skip
    for root in range(size):
        assert torch.equal(hvd.broadcast(mine, root).cpu(), everybody[root])
    part = slice(6000 * rank, 6000 * (rank + 1))
    assert torch.equal(hvd.alltoall(mine).cpu(), torch.cat([x[part] for x in everybody]))
    total = torch.stack(everybody).sum(0)
    assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum).cpu(), total[part])
    whole = torch.empty(size * mine.numel(), device=device())
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole.cpu(), torch.cat(everybody))
    shard = torch.empty(6000, device=device())
    dist.reduce_scatter_tensor(shard, mine)
    assert torch.equal(shard.cpu(), total[part])
    last = size - 1
    parts = [torch.empty_like(mine) for _ in range(size)] if rank == last else None
    dist.gather(mine, parts, dst=last)
    assert not parts or torch.equal(torch.stack(parts).cpu(), torch.stack(everybody))
    dist.scatter(shard, list(mine.split(6000)) if rank == last else None, src=last)
    assert torch.equal(shard.cpu(), everybody[last][part])
    turned = mine * 1j
    dist.reduce(turned, dst=last)
    assert rank < last or torch.equal(turned.cpu(), total * 1j)
    moved = horoacc.counters()["gpu_moved_bytes"] - before
    on_gpus = _mode() != "cpu_reduce" and not _several_hosts()
    if size > 1:
        uneven = 4 * (rank + 1)
        assert moved == ((size + 7) * mine.nbytes + shard.nbytes + uneven if on_gpus else 0), moved


def streams_are_kept() -> None:
    """The call waits for a slow stream, and the stream for its result; nothing else waits."""
    own = torch.cuda.Stream(device())
    for step in range(20):
        with torch.cuda.stream(own):
            slow = torch.ones(4 * MIB, device=device())
            for _ in range(20):
                slow = slow * 1.0 + step
            handle = hvd.allreduce_async(slow, op=hvd.Sum, name="slow")
            result = hvd.synchronize(handle) - hvd.size() * (1 + 20 * step)
            assert float(result.cpu().abs().max()) == 0.0, step


def sets_take_turns() -> None:
    """Two sets of all ranks are at work at once, begun by every rank in an order of its own.

    Each has up to three buckets in flight.
    """
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    rank, size = hvd.rank(), hvd.size()
    groups = [dist.new_group(range(size)) for _ in range(2)]
    draw = np.random.default_rng(rank)
    for step in range(8):
        given = [
            [torch.full((3000,), float(rank + step + 3 * k + c)).to(device()) for c in range(3)]
            for k in range(2)
        ]
        works: list[list[dist.Work]] = [[], []]
        for k in draw.permutation([0, 1] * 3):
            time.sleep(float(draw.uniform(0, 2e-3)))
            tensor = given[k][len(works[k])]
            works[k].append(dist.all_reduce(tensor, group=groups[k], async_op=True))
        for work in works[0] + works[1]:
            work.wait()
        for k, tensors in enumerate(given):
            for call, tensor in enumerate(tensors):
                wanted = size * (step + 3 * k + call) + size * (size - 1) / 2
                assert tensor.cpu().tolist() == [wanted] * 3000, (step, k, call)
    for group in groups:
        dist.destroy_process_group(group)


def a_capture_is_refused() -> None:
    """In a CUDA graph a collective is an error that says so; before and after it is none."""
    tensor = torch.ones(1000, device=device())
    hvd.allreduce_(tensor, op=hvd.Min, name="before")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream(device())):
        graph.capture_begin()
        try:
            hvd.allreduce_(tensor, op=hvd.Min, name="captured")
        except HoroaccError as error:
            said = str(error)
        else:
            said = "nothing"
        finally:
            graph.capture_end()
    _say(f"in a capture: {said}")
    assert "cannot be captured into a CUDA graph" in said
    hvd.allreduce_(tensor, op=hvd.Min, name="afterwards")
    assert tensor.cpu().tolist() == [1.0] * 1000


def graphs_go_on_around_it() -> None:
    """CUDA graphs before and behind a collective: captured by hand, and by the compiler."""
    given = torch.zeros(3000, device=device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = given * 2
    step = torch.compile(lambda x: hvd.allreduce(x.sin() * 2, op=hvd.Sum).cos(), fullgraph=True,
                         mode="reduce-overhead")  # fmt: skip
    for turn in range(4):
        given.fill_(turn + hvd.rank())
        graph.replay()
        found = hvd.allreduce(doubled, op=hvd.Sum)
        wanted = sum(2.0 * (turn + r) for r in range(hvd.size()))
        assert found.cpu().tolist() == [wanted] * 3000, turn
        plain = hvd.allreduce(given.sin() * 2, op=hvd.Sum).cos()
        torch.testing.assert_close(step(given), plain, msg=f"turn {turn}")


def training_is_the_same() -> None:
    """Hooks on gradients, and DistributedDataParallel, against the same model on the CPU."""
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    for wrapped in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(),
                                    torch.nn.Linear(300, 5)).to(device())  # fmt: skip
        alone = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(),
                                    torch.nn.Linear(300, 5))  # fmt: skip
        alone.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        net = torch.nn.parallel.DistributedDataParallel(model) if wrapped else model
        if not wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        reference = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(5):
            inputs = [given(r + step, 320, torch.float32).view(16, 20) for r in range(hvd.size())]
            optimizer.zero_grad()
            net(inputs[hvd.rank()].to(device())).square().mean().backward()
            optimizer.step()
            reference.zero_grad()
            torch.stack([alone(x).square().mean() for x in inputs]).mean().backward()
            reference.step()
        for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def the_mode_is_used() -> None:
    """The mode of the setting reduces, and only CPU-Reduce copies to the host."""
    mode = _mode()
    before = horoacc.counters()
    found = hvd.allreduce(torch.ones(MIB, device=device()), op=hvd.Sum)
    assert float((found.cpu() - hvd.size()).abs().max()) == 0.0
    after = horoacc.counters()
    moved = {name: after[f"gpu_{name}bytes"] - before[f"gpu_{name}bytes"]
             for name in ("leader_", "stream_", "kernel_", "nccl_", "composed_", "")}  # fmt: skip
    _say(f"{mode}: bytes {moved}; those without a name are the host's")
    if _several_hosts():
        assert moved["composed_"] == sum(moved.values()) > 0
    elif mode == "auto":
        assert sum(moved.values()) == 4 * MIB
    else:
        used = "" if mode == "cpu_reduce" else f"{mode}_"
        assert moved == {name: 4 * MIB if name == used else 0 for name in moved}


def a_mode_is_refused() -> None:
    """An impossible mode is an error on all ranks, and the job goes on."""
    for _ in range(2):
        try:
            hvd.allreduce(torch.ones(1000, device=device()))
        except ConfigError as error:
            _say(f"refused: {error}")
        else:
            raise AssertionError("it was not refused")
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [float(hvd.size())] * 3


def a_killed_rank_releases_the_others() -> None:
    """The last rank dies in the middle; the others are told within 5 s, and end in good order."""
    # The launcher ends the job because of the death: a rank reports before that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tensor = torch.ones(1000, device=device())
    hvd.allreduce(tensor, name="first")
    if hvd.rank() == hvd.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        hvd.allreduce(tensor, name="second")
    except hvd.HorovodInternalError as error:
        seconds = time.monotonic() - begin
        _figure(what="released", mode=_mode(), ranks=hvd.size(), s=round(seconds, 2))
        print(f"released after {seconds:.2f} s: {error}", flush=True)
        os._exit(0 if seconds < 5 else 1)
    os._exit(1)


def _median_seconds(body: Callable[[], None], rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        hvd.barrier()
        torch.cuda.synchronize(device())
        begin = time.perf_counter()
        body()
        torch.cuda.synchronize(device())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _mode() -> str:
    return os.environ.get("HOROACC_GPU_MODE", "auto")


def _several_hosts() -> bool:
    return bool(os.environ.get("HOROACC_SIMULATED_HOSTS"))


def _figure(**row: object) -> None:
    """A line that tests/gpu/bounds.py reads."""
    row["mps"] = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    print(json.dumps(row), flush=True)


def _first_says(**row: object) -> None:
    if hvd.rank() == 0:
        _figure(**row)


def _say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def times_of_allreduce() -> None:
    """The bytes of a rank a second, against both ways of the bus used at once in the same run."""
    for mib in SIZES:
        tensors = [torch.ones(mib * MIB // 32, device=device()) for _ in range(8)]
        pinned = [torch.ones(mib * MIB // 32).pin_memory() for _ in range(16)]
        back = [torch.empty_like(tensor) for tensor in tensors]
        one = torch.ones(mib * MIB // 4, device=device())
        there, here = torch.cuda.Stream(device()), torch.cuda.Stream(device())

        def both_ways(tensors=tensors, pinned=pinned, back=back, one=there, two=here) -> None:  # type: ignore[no-untyped-def]
            for k, tensor in enumerate(tensors):
                with torch.cuda.stream(one):
                    pinned[k].copy_(tensor, non_blocking=True)
                with torch.cuda.stream(two):
                    back[k].copy_(pinned[8 + k], non_blocking=True)

        def many(tensors=tensors) -> None:  # type: ignore[no-untyped-def]
            handles = [hvd.allreduce_async_(x, name=f"t{k}") for k, x in enumerate(tensors)]
            for handle in handles:
                hvd.synchronize(handle)

        copy = _median_seconds(both_ways)
        split = _median_seconds(many)
        whole = _median_seconds(lambda one=one: hvd.allreduce_(one, name="one"))  # type: ignore[misc]
        for parts, spent in ((8, split), (1, whole)):
            _first_says(
                what="allreduce", mode=_mode(), ranks=hvd.size(), MiB=mib, parts=parts,
                ms=round(spent * 1e3, 3), **{
                    "GB/s": round(mib * MIB / 1e9 / spent, 2),
                    "both ways GB/s": round(mib * MIB / 1e9 / copy, 2),
                    "of both ways": round(copy / spent, 3),
                },
            )  # fmt: skip


def times_of_small_allreduce() -> None:
    """The time of a blocking call."""
    for count in (256, 16_384, 262_144):
        tensor = torch.ones(count, device=device())

        def twenty(tensor=tensor) -> None:  # type: ignore[no-untyped-def]
            for _ in range(20):
                hvd.allreduce_(tensor, name="small")

        micros = _median_seconds(twenty) / 20 * 1e6
        _first_says(what="small allreduce", mode=_mode(), ranks=hvd.size(), KiB=count // 256,
                    us=round(micros, 1))  # fmt: skip


def times_of_the_bound() -> None:
    """One rank alone copies what the GPU must move: 2 N S, and 6 N S with packing and unpacking."""
    for mib in [size for size in SIZES if size >= 64] or SIZES:
        tensor = torch.ones(mib * MIB // 4, device=device())
        other = torch.empty_like(tensor)

        def bound(tensor=tensor, other=other) -> None:  # type: ignore[no-untyped-def]
            if hvd.rank() == 0:
                for _ in range(hvd.size()):
                    other.copy_(tensor)

        copies = float(hvd.broadcast(torch.tensor(_median_seconds(bound)), 0))
        whole = _median_seconds(lambda tensor=tensor: hvd.allreduce_(tensor, name="bound"))  # type: ignore[misc]
        _first_says(
            what="bound", mode=_mode(), ranks=hvd.size(), MiB=mib, ms=round(whole * 1e3, 3), **{
                "2NS ms": round(copies * 1e3, 3), "of 2NS": round(copies / whole, 3),
                "of 6NS": round(3 * copies / whole, 3),
            },
        )  # fmt: skip


def times_against_gloo() -> None:
    """The peer that takes several ranks on one GPU: a blocking call, by turns."""
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    groups = {"gloo": dist.new_group(backend="gloo"), "horoacc": dist.group.WORLD}

    def call(tensor, group):  # type: ignore[no-untyped-def]
        return lambda: dist.all_reduce(tensor, group=group)

    for kib in (1, 1 << 10, 64 << 10):
        tensor = torch.zeros(kib * 256, device=device())
        spent: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(5):
            for name, group in groups.items():
                spent[name].append(_median_seconds(call(tensor, group), 4))
        micros = {name: statistics.median(some) * 1e6 for name, some in spent.items()}
        _first_says(what="against gloo", mode=_mode(), ranks=hvd.size(), KiB=kib,
                    ratio=round(micros["gloo"] / micros["horoacc"], 2),
                    **{f"{name} us": round(us, 1) for name, us in micros.items()})  # fmt: skip


class _Weights(torch.nn.Module):
    """Parameters of given sizes, each with a gradient."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(size) for size in sizes])

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return torch.stack([(weight * factor).sum() for weight in self.weights]).sum()


def times_of_steps() -> None:
    """A backward pass and a step: with DistributedDataParallel over horoacc, alone, over gloo."""
    if not dist.is_initialized():
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
    gloo = dist.new_group(backend="gloo")
    factor = torch.ones((), device=device())
    for name, sizes in (("ResNet-50", RESNET_50), ("GPT-2 small", GPT_2_SMALL)):
        mb = round(4 * sum(sizes) / 1e6)
        row = {"what": "step", "model": name, "mode": _mode(), "ranks": hvd.size(), "MB": mb}
        for column, group in (("ms", dist.group.WORLD), ("ms alone", None), ("ms gloo", gloo)):
            model = _Weights(sizes).to(device())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            net = model if group is None else torch.nn.parallel.DistributedDataParallel(
                model, process_group=group, gradient_as_bucket_view=True)  # fmt: skip

            def step(net=net, optimizer=optimizer) -> None:  # type: ignore[no-untyped-def]
                optimizer.zero_grad()
                net(factor).backward()
                optimizer.step()

            row[column] = round(_median_seconds(step, 5) * 1e3, 1)
        _first_says(**row)


if __name__ == "__main__":
    hvd.init()
    torch.cuda.set_device(device())
    for part in sys.argv[1:]:
        globals()[part]()
        _say(f"{part}: good, {hvd.size()} ranks")
    hvd.shutdown()
