"""A model's gradients, tensor by tensor, against one allreduce of the same bytes, at 2 ranks.

The gradients lie in the arena, as those of a backward pass do. They are named and submitted one by
one, the last one first, by the C++ call of one tensor, and as the optimizer's hooks do, by a locked
plan; the same from Python, and as one grouped call, is measured beside it.
"""

from __future__ import annotations

import ctypes
import statistics
from math import prod
from typing import Any

import numpy as np

from benchmarks import native
from benchmarks.adapters import HoroaccAdapter
from benchmarks.gradient_sets import GradientSet, gpt2_small, many_small, resnet50
from benchmarks.group import Group, groups
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.slices import (
    Contender,
    Effort,
    Rotation,
    Sample,
    Slices,
    compete,
    differing,
    fill,
    slots,
)

RANKS = 2
PEERS = ("gloo", "openmpi", "mpich")
HOOKS, PYTHON, ONE = "as hooks submit", "from Python", "one allreduce"
PLAN = "as hooks submit, by a locked plan"
GROUPED = "one grouped call"
_ALIGN = 16  # elements: a cache line, the least distance of blocks in the arena
_ERROR_BYTES = 8 + 4096


class GradientWork:
    """Steps of one set of gradients on a rank, over several copies of it in turn."""

    def __init__(
        self, adapter: HoroaccAdapter, shapes: list[tuple[int, ...]], how: str, memory: str
    ) -> None:
        self._adapter, self._how = adapter, how
        self._shapes = shapes if how != ONE else [(sum(_room(shape) for shape in shapes),)]
        total = sum(_room(shape) for shape in self._shapes)
        self._copies, self._next = slots(4 * total, adapter.size), 0
        self._block = adapter.allocate(total * self._copies, memory)
        adapter.array(self._block)[:] = 0
        self._names = [f"{how} {index} of {len(shapes)}" for index in range(len(self._shapes))]
        self._steps = [self._copy(begin * total) for begin in range(self._copies)]
        self.submitting: list[float] = []
        if how not in (PYTHON, GROUPED):
            self._make_native()

    def _copy(self, begin: int) -> tuple[list[Any], Any]:
        """The tensors of one copy, and their addresses."""
        tensors = []
        for shape in self._shapes:
            tensors.append(self._block[begin : begin + prod(shape)].view(shape))
            begin += _room(shape)
        addresses = (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))
        return tensors, addresses

    def _make_native(self) -> None:
        from horoacc import basics, ops_build

        # Its functions must be global before a library that uses them is loaded.
        ctypes.CDLL(str(ops_build.core_library()), mode=ctypes.RTLD_GLOBAL)
        core = native.ROOT / "csrc"
        self._native = native.library("submit.cc", f"-I{core}", header=core / "api" / "horoacc.h")
        self._native.gradients_create.restype = ctypes.c_void_p
        self._native.gradients_step.restype = ctypes.c_double
        engine = ctypes.c_void_p(basics.engine().address)
        self._gradients = ctypes.c_void_p(self._native.gradients_create(engine))
        for name, shape in zip(self._names, self._shapes, strict=True):
            dims = (ctypes.c_int64 * len(shape))(*shape)
            self._native.gradients_add(self._gradients, name.encode(), dims, len(shape))
        if self._how == PLAN:
            self._native.gradients_plan(self._gradients)

    def run(self, warm: int, calls: int) -> float:
        for _ in range(warm):
            self._step()
        self._adapter.barrier()
        return statistics.mean(self._step() for _ in range(calls))

    def _step(self) -> float:
        tensors, addresses = self._steps[self._next]
        self._next = (self._next + 1) % self._copies
        if self._how == GROUPED:
            return self._grouped(tensors)
        return self._python(tensors) if self._how == PYTHON else self._hooks(addresses)

    def _hooks(self, addresses: Any) -> float:
        submitting = ctypes.c_double()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        seconds: float = self._native.gradients_step(
            self._gradients, addresses, ctypes.byref(submitting), error
        )
        if seconds < 0:
            raise RuntimeError(error.raw[8:].split(b"\0")[0].decode())
        self.submitting.append(submitting.value)
        return seconds

    def _python(self, tensors: list[Any]) -> float:
        from time import perf_counter

        hvd = self._adapter.hvd
        start, sum_ = hvd.allreduce_async_, hvd.Sum
        begin = perf_counter()
        pairs = zip(reversed(tensors), reversed(self._names), strict=True)
        handles = [start(tensor, name=name, op=sum_) for tensor, name in pairs]
        self.submitting.append(perf_counter() - begin)
        for handle in handles:
            hvd.synchronize(handle)
        return perf_counter() - begin

    def _grouped(self, tensors: list[Any]) -> float:
        from time import perf_counter

        hvd = self._adapter.hvd
        begin = perf_counter()
        hvd.grouped_allreduce_(tensors, name=self._how, op=hvd.Sum)
        return perf_counter() - begin

    def wrong(self) -> int:
        tensors, _ = self._steps[self._next]
        for tensor in tensors:
            fill(_flat(tensor), self._adapter.rank + 1)
        self._step()
        total = self._adapter.size * (self._adapter.size + 1) // 2
        count = sum(differing(_flat(tensor), total) for tensor in tensors)
        for tensor in tensors:
            tensor.zero_()
        return count

    def __del__(self) -> None:
        if hasattr(self, "_gradients"):
            self._native.gradients_destroy(self._gradients)


def _room(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // _ALIGN) * _ALIGN


def _flat(tensor: Any) -> Any:
    return np.asarray(tensor.numpy()).reshape(-1)


def submitting(rank: Rank, key: str) -> list[float]:
    """Gives the seconds of every step's submissions since the last question, and forgets them."""
    work: GradientWork = rank.kept[key]
    found, work.submitting = work.submitting, []
    return found


class GradientSlices(Slices):
    """Also asks how long the submissions took."""

    def __init__(self, contender: Contender, gradients: GradientSet) -> None:
        how = contender.how
        super().__init__(contender, GradientWork, gradients.shapes, how, contender.memory)
        self.submitting: list[float] = []

    def take(self, effort: Effort) -> None:
        self._ask()  # the steps before were warming up
        super().take(effort)
        if steps := self._ask():
            self.submitting.append(statistics.median(steps))

    def _ask(self) -> list[float]:
        found = self.contender.group.run(submitting, self._key)
        return [seconds for of_rank in found for seconds in of_rank]


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    sets = [resnet50(), many_small()] if quick else [resnet50(), gpt2_small(), many_small()]

    with groups(["horoacc", *PEERS], RANKS, records.reporter_of_failures(RANKS)) as up:
        for gradients in sets:
            _measure(records, up, gradients, Effort.of(quick, RANKS))


def _measure(
    records: Records, up: dict[str, Group], gradients: GradientSet, effort: Effort
) -> None:
    own: list[GradientSlices] = []
    if "horoacc" in up and not up["horoacc"].broken:
        own = [
            GradientSlices(Contender(f"horoacc {how}", up["horoacc"], "arena", how), gradients)
            for how in (HOOKS, PLAN, PYTHON, GROUPED, ONE)
        ]
    # The best that a peer could do with the set is one call for all of it.
    peers = [
        Slices(Contender(f"{peer} {ONE}", up[peer]), Rotation, gradients.bytes, "private", ONE)
        for peer in PEERS
        if peer in up and not up[peer].broken
    ]
    samples = compete([*own, *peers], effort, records.reporter_of_failures(RANKS))
    for entry in [*own, *peers]:
        name = entry.contender.name
        if name in samples:
            records.allreduce(
                entry.contender, gradients.bytes, samples[name], set=gradients.name,
                tensors=1 if entry.contender.how in (ONE, "in place") else len(gradients.shapes),
            )  # fmt: skip
    for entry in own:
        if entry.contender.how != ONE and entry.submitting:
            each = 1e6 * statistics.median(entry.submitting) / len(gradients.shapes)
            what = f"{gradients.name}, submission of a tensor, {entry.contender.how}"
            records.figure(what, round(each, 3), "us", entry.contender.group)
            if entry.contender.how == HOOKS and gradients.name == many_small().name:
                records.target(what, each, 1, "us", True)
    _compare(records, gradients, samples)


def _compare(records: Records, gradients: GradientSet, samples: dict[str, Sample]) -> None:
    tensors, one = (samples.get(f"horoacc {how}") for how in (HOOKS, ONE))
    if tensors is None or one is None:
        return
    if gradients.name == many_small().name:
        for how, most in ((HOOKS, 1.5), (PLAN, 1.5), (PYTHON, 6), (GROUPED, 1.5)):
            if found := samples.get(f"horoacc {how}"):
                records.target(f"{gradients.name}, {how}", 1e3 * found.median, most, "ms", True)
        return
    more = 100 * (tensors.median / one.median - 1)
    what = f"{gradients.name}, {len(gradients.shapes)} tensors, over one allreduce of their bytes"
    records.target(what, more, 20, "%", True)
