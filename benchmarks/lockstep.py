"""What communication adds to a training step on 2 ranks, to the microsecond.

Each rank has the network twice: one copy is trained with the others, the other meets the other
ranks' at a barrier in each step and communicates nothing. So both wait for the slower rank of a
step, and what is left is the cost of communicating. Blocks of some steps of both take turns; each
pair gives a ratio or a difference, and the interval of their median judges.

Of an allreduce, the bytes must pass through the memory at least: the step in lockstep may take that
time (`benchmarks.memory_bound`) longer.
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from benchmarks import keras_fit, memory_bound, native, tensorflow_steps
from benchmarks.adapters import HoroaccAdapter
from benchmarks.group import Group, GroupFailed, groups
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.slices import Effort, compete
from horoacc.trials import interval

RANKS = 2
ALONE, TOGETHER = "alone", "together"
_ORDERS, _PAIRS, _BLOCK_SECONDS, WARM_STEPS = 20, 10, 0.08, 1


class Case(NamedTuple):
    """A network, how it is trained, and what the step in lockstep is of the step together."""

    name: str
    limit: float
    unit: str
    build: Callable[..., Any]
    train: Callable[..., float]
    arguments: tuple[str, ...] = ()
    needs: str = "torch"
    backend: str = "torch"


# --- on the ranks ------------------------------------------------------------------------------


def open_barrier(rank: Rank, path: str) -> None:
    """From now on the copy alone meets the others' in each step."""
    core = native.ROOT / "csrc"
    library = native.library("barrier.cc", f"-I{core}", header=core / "base" / "pause.h")
    library.barrier_open.restype = ctypes.c_void_p
    barrier = ctypes.c_void_p(library.barrier_open(path.encode()))
    if not barrier:
        raise OSError(f"{path} cannot be mapped")

    def meet(*_: object, **__: object) -> None:
        if library.barrier_meet(barrier, RANKS):
            raise TimeoutError("the other rank has not come to the barrier")

    # A callback that does nothing for the other copy: both run as much Python.
    rank.kept["meet"] = {ALONE: meet, TOGETHER: lambda *_, **__: None}


def _done(value: Any) -> Any:
    import torch

    future = torch.futures.Future()  # type: ignore[no-untyped-call, var-annotated]
    future.set_result(value)
    return future


class Copy:
    """A copy of a network of torch on a rank."""

    def __init__(self, rank: Rank, net: str, how: str, copy: str) -> None:
        import torch

        from benchmarks.nets import NETS, WIDE_NETS

        torch.manual_seed(1)
        task = (NETS | WIDE_NETS)[net]()
        torch.manual_seed(2 + rank.adapter.rank)
        self.data = task.data()
        self.own = self.model = task.model
        parameters = list(self.own.parameters())
        self.optimizer: Any = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        self._meet = rank.kept["meet"][copy]
        if how.startswith("DDP"):
            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("horoacc")
            self.model = torch.nn.parallel.DistributedDataParallel(
                self.own, gradient_as_bucket_view=True
            )
            if copy == ALONE:  # a hook that leaves gradients as they are
                self.model.register_comm_hook(None, lambda _, bucket: _done(bucket.buffer()))
            elif "ALLREDUCE" in how:  # one division a bucket, and not one a gradient
                self.model._register_builtin_comm_hook(
                    torch.distributed.BuiltinCommHookType.ALLREDUCE
                )
        elif copy == TOGETHER:
            hvd = cast(HoroaccAdapter, rank.adapter).hvd
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer, named_parameters=self.own.named_parameters()
            )

    def step(self) -> None:
        import torch

        x, y = self.data
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
        self._meet()  # where the other copy waits for its gradients
        self.optimizer.step()


def build(rank: Rank, net: str, how: str) -> int:
    """Makes both copies; gives the bytes of the gradients."""
    for copy in (ALONE, TOGETHER):
        rank.kept[copy] = Copy(rank, net, how, copy)
    return sum(4 * one.numel() for one in rank.kept[ALONE].own.parameters())


def train(rank: Rank, copy: str, steps: int) -> float:
    """Trains one copy; gives the seconds of a step."""
    made: Copy = rank.kept[copy]
    for _ in range(WARM_STEPS):
        made.step()
    begin = time.perf_counter()
    for _ in range(steps):
        made.step()
    return (time.perf_counter() - begin) / steps


def pairs(rank: Rank, train: Callable[..., float], steps: int, count: int) -> list[list[float]]:
    """Trains both copies in turns; gives the seconds of a step of each, alone first."""
    found = []
    for turn in range(count):
        order = (ALONE, TOGETHER) if turn % 2 else (TOGETHER, ALONE)
        pair = {copy: train(rank, copy, steps) for copy in order}
        found.append([pair[ALONE], pair[TOGETHER]])
    return found


# --- in the driver -----------------------------------------------------------------------------


def _torch(name: str, limit: float, unit: str, net: str, how: str) -> Case:
    return Case(name, limit, unit, build, train, (net, how))


def _keras(backend: str) -> Case:
    name, needs = f"Keras fit, MLP, {backend}", "keras"
    return Case(name, 93, "%", keras_fit.build, keras_fit.train, (), needs, backend)


CASES = (
    _torch("ResNet-20-shaped CNN, batch 16", 98, "%", "cnn", "optimizer"),
    _torch("100 x Linear(64,64), batch 32", 95, "%", "deep", "optimizer"),
    _torch("MLP 1024-2048-2048-1000, batch 32", 95, "%", "mlp", "optimizer"),
    _torch("2000 tensors of 64 numbers, DistributedOptimizer", 2, "ms", "tiny", "optimizer"),
    _torch("2000 tensors of 64 numbers, DDP", 1, "ms", "tiny", "DDP"),
    _torch("the same with torch's built-in hook ALLREDUCE", 1, "ms", "tiny", "DDP, ALLREDUCE"),
    _keras("tensorflow"),
    _keras("torch"),
    Case(
        "MLP in a tf.function", 93, "%", tensorflow_steps.build, tensorflow_steps.train, (),
        "tensorflow", "tensorflow",
    ),
)  # fmt: skip


def run(records: Records, quick: bool) -> None:
    """Measures every case, and compares it with its target."""
    report_failure = records.reporter_of_failures(RANKS)
    for case in CASES:
        missing = [one for one in (case.needs, case.backend) if not importlib.util.find_spec(one)]
        if missing:
            records.write({"skipped": f"{case.name}: {missing[0]} is not installed"})
            continue
        extra = {"HOROACC_ARENA": "gradients", "KERAS_BACKEND": case.backend}
        with (
            groups(["horoacc"], RANKS, report_failure, False, **extra) as up,
            tempfile.NamedTemporaryFile(dir="/dev/shm") as barrier,
        ):
            barrier.truncate(4096)
            if "horoacc" in up:
                try:
                    up["horoacc"].run(open_barrier, barrier.name)
                    _measure(records, up["horoacc"], case, quick)
                except GroupFailed as error:
                    report_failure(f"horoacc, {case.name}", str(error))


def _measure(records: Records, group: Group, case: Case, quick: bool) -> None:
    size = group.run(case.build, *case.arguments)[0]
    least = _bound(records, size, quick) if case.unit == "%" else 0.0
    slower = max(max(group.run(case.train, copy, 3)) for copy in (ALONE, TOGETHER))
    steps = max(1, round(_BLOCK_SECONDS / slower))
    blocks = []
    for _ in range(1 if quick else _ORDERS):
        of_ranks = group.run(pairs, case.train, steps, 6 if quick else _PAIRS)
        blocks += [[sum(copy) / RANKS for copy in zip(*pair, strict=True)]
                   for pair in zip(*of_ranks, strict=True)]  # fmt: skip
    share = case.unit == "%"
    low, median, high = interval(
        [100 * (one + least) / other if share else 1e3 * (other - one) for one, other in blocks]
    )
    alone, together = (1e3 * interval(of).median for of in zip(*blocks, strict=True))
    records.figure(
        f"{case.name}: step", round(together, 3), "ms", group, lockstep_ms=round(alone, 3),
        bound_ms=round(1e3 * least, 3), pairs=len(blocks), steps=steps,
    )  # fmt: skip
    records.target(
        f"{case.name}: " + ("of the step in lockstep" if share else "over the step in lockstep"),
        median, case.limit, case.unit, not share, interval=(low, high),
        note=f"{alone:.3g} ms in lockstep, {together:.3g} together; the bytes {1e3 * least:.3g}",
    )  # fmt: skip


def _bound(records: Records, size: int, quick: bool) -> float:
    """The least seconds that the memory allows an allreduce of so many bytes."""
    if size < memory_bound.LEAST:
        return 0.0
    report_failure = records.reporter_of_failures(RANKS)
    with groups(["bound"], RANKS, report_failure) as up:
        if "bound" not in up:
            return 0.0
        entries = memory_bound.entries(up["bound"], size // 64 * 64, RANKS)
        samples = compete(entries, Effort.of(quick, 1), report_failure)
        return memory_bound.record(records, up["bound"], size // 64 * 64, RANKS, samples)
