"""Training steps of three networks on 2 ranks: torch's DistributedDataParallel over HoroACC and
over Gloo, and `hvd.DistributedOptimizer`.

The ranks of both systems take turns, and so do the ways of each. Gloo's ranks also train the same
network alone: what is left of its step is communication. What is compared are the slices of one
round, which meet the same machine: a round gives a ratio, and the quartiles of the ratios say
whether a target is met, missed, or neither.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from benchmarks.adapters import Adapter, HoroaccAdapter
from benchmarks.group import Group, groups
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Sample, Slices, compete
from horoacc.launcher.main import KEEP_MEMORY

RANKS = 2
ALONE, DDP, OPTIMIZER = "alone", "DDP", "DistributedOptimizer"
_NAMES = {
    "cnn": "ResNet-20-shaped CNN, batch 16",
    "gpt2": "GPT-2-small-shaped transformer, one sequence of 16",
    "tiny": "2000 tensors of 64 numbers",
}
_SHARE = 1 / 3
"""Of a step with Gloo: from here on communication counts."""
_GAIN = 1.5
_ROUNDS = 15


# --- on the ranks ------------------------------------------------------------------------------


class StepWork:
    """A network that a rank trains alone or with the others."""

    def __init__(self, adapter: Adapter, net: str, how: str) -> None:
        import torch

        from benchmarks.nets import NETS, WIDE_NETS

        torch.manual_seed(1)
        task = (NETS | WIDE_NETS)[net]()
        torch.manual_seed(2 + adapter.rank)
        self._adapter, self._torch = adapter, torch
        self._data = task.data()
        self._own = task.model
        self._model: Any = task.model
        self._optimizer: Any = torch.optim.SGD(task.model.parameters(), lr=1e-3)
        if how == DDP:
            self._model = self._wrap(task.model)
        elif how == OPTIMIZER:
            hvd = cast(HoroaccAdapter, adapter).hvd
            self._optimizer = hvd.DistributedOptimizer(
                self._optimizer, named_parameters=task.model.named_parameters()
            )
        self._how = how

    def _wrap(self, model: Any) -> Any:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("horoacc")
        parallel = self._torch.nn.parallel.DistributedDataParallel
        return parallel(model, gradient_as_bucket_view=True)

    def _step(self) -> None:
        x, y = self._data
        self._optimizer.zero_grad()
        self._torch.nn.functional.cross_entropy(self._model(x), y).backward()
        self._optimizer.step()

    def run(self, warm: int, calls: int) -> float:
        for _ in range(warm):
            self._step()
        self._adapter.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            self._step()
        return (time.perf_counter() - begin) / calls

    def wrong(self) -> int:
        """The parameters of all ranks must be the same: compares sums of their bits."""
        self._step()
        if self._how == ALONE:
            return 0
        torch = self._torch
        bits = [p.detach().reshape(-1).view(torch.int32) for p in self._own.parameters()]
        own = torch.stack([one.sum(dtype=torch.int64) for one in bits])
        return int((own != self._of_root(own)).sum())

    def _of_root(self, own: Any) -> Any:
        import torch.distributed as dist

        if self._how == OPTIMIZER:
            return cast(HoroaccAdapter, self._adapter).hvd.broadcast(own, 0)
        given = own.clone()
        dist.broadcast(given, 0)
        return given


# --- in the driver -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    name: str
    system: str
    how: str


_WAYS = (
    _Way("gloo alone", "gloo", ALONE),
    _Way("gloo DDP", "gloo", DDP),
    _Way("horoacc DDP", "horoacc", DDP),
    _Way("horoacc DistributedOptimizer", "horoacc", OPTIMIZER),
)


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    report_failure = records.reporter_of_failures(RANKS)
    for net in _NAMES if not quick else ("cnn", "tiny"):
        # DDP takes what its buckets lie in when it is made; other networks' are gone then.
        # Everybody's C library keeps freed memory, as under horoaccrun: a step of the CNN takes a
        # fifth longer without, whoever communicates.
        memory = {"HOROACC_ARENA": "gradients", **KEEP_MEMORY}
        with groups(["horoacc", "gloo"], RANKS, report_failure, False, **memory) as up:
            if len(up) == len({way.system for way in _WAYS}):
                _measure(records, up, net, quick, report_failure)


def _measure(
    records: Records,
    up: dict[str, Group],
    net: str,
    quick: bool,
    report_failure: Callable[[str, str], None],
) -> None:
    entries = {
        way.name: Slices(
            Contender(way.name, up[way.system], "gradients", way.how), StepWork, net, way.how
        )
        for way in _WAYS
    }
    # As many rounds for who is slow as for the others: a round is what is compared.
    effort = Effort(3, 0.01, 0.01, 60.0) if quick else Effort(_ROUNDS, 0.25, 0.1, 120.0)
    samples = compete(list(entries.values()), effort, report_failure)
    for name, sample in samples.items():
        group = entries[name].contender.group
        records.figure(
            f"{_NAMES[net]}: step, {name}", round(1e3 * sample.median, 3), "ms", group,
            steps=sample.iterations, quartiles=_quartiles(sample),
        )  # fmt: skip
        if sample.wrong:
            records.report_failure(f"{name}, {net}", RANKS, "the ranks' parameters differ")
    if len(samples) == len(_WAYS):
        _compare(records, net, {name: sample.seconds for name, sample in samples.items()})


def _compare(records: Records, net: str, step: dict[str, list[float]]) -> None:
    # A step that communicates is no faster than one that does not: the fastest way tells what is
    # left of Gloo's step without its communication, also where that is not the copy alone.
    share = 1 - min(
        statistics.median(ratios(step[way.name], step["gloo DDP"]))
        for way in _WAYS if way.name != "gloo DDP"
    )  # fmt: skip
    limit = _GAIN if share >= _SHARE else 1.0
    for way in _WAYS:
        if way.system == "horoacc":
            low, gain, high = statistics.quantiles(ratios(step["gloo DDP"], step[way.name]), n=4)
            records.target(
                f"{_NAMES[net]}: steps a second of {way.name} against Gloo's DDP",
                gain, limit, "x", False, (low, high),
                note=f"communication is {100 * share:.0f} % of Gloo's step",
            )  # fmt: skip


def ratios(one: list[float], other: list[float]) -> list[float]:
    """The ratio of two ways' times in each round."""
    return [a / b for a, b in zip(one, other, strict=True)]


def _quartiles(sample: Sample) -> list[float]:
    values = [1e3 * seconds for seconds in sample.seconds]
    return [round(value, 3) for value in statistics.quantiles(values, n=4)]
