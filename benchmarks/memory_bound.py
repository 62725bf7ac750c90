"""The bandwidth bound of this machine: the fastest sum of P private buffers into all P of them, by
all cores of one process that waits for nobody. It moves 2S bytes a rank, the least there can be.

Four ways are timed, for the best depends on the size and the machine: ordinary stores and stores
past the caches, each on huge and on small pages. Small pages are what shared memory has on most
kernels. The bound of a size is the fastest of them.
"""

from __future__ import annotations

import ctypes

import numpy as np

from benchmarks import native
from benchmarks.adapters import Adapter, Array
from benchmarks.group import Group, groups
from benchmarks.machine import available_bytes, cores
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Sample, Slices, compete, differing, fill, slots

WAYS = ("huge pages", "small pages", "huge pages, streaming", "small pages, streaming")
LEAST = 256 << 10
"""Below it a bound by bandwidth means nothing."""
_END = 64 << 10
_SIZES = tuple(1 << shift for shift in range(20, 28))


class BoundWork:
    """The kernel on the buffers of all ranks. Runs in the only rank of the group `bound`."""

    def __init__(self, adapter: Adapter, size: int, ranks: int, way: str) -> None:
        self._native = native.library("memory_bound.cc")
        self._native.bound_create.restype = ctypes.c_void_p
        self._native.bound_run.restype = ctypes.c_double
        self._native.bound_buffer.restype = ctypes.POINTER(ctypes.c_float)
        self._size, self._ranks = size, ranks
        self._slots, self._next = slots(size, ranks), 0
        self._stream = int("streaming" in way)
        made = self._native.bound_create(
            ctypes.c_size_t(ranks), ctypes.c_size_t(size), ctypes.c_size_t(self._slots),
            min(cores(), ranks), int("huge" in way),
        )  # fmt: skip
        if not made:
            raise MemoryError(f"{size} bytes for {ranks} ranks")
        self._bound = ctypes.c_void_p(made)

    def run(self, warm: int, calls: int) -> float:
        seconds: float = self._native.bound_run(
            self._bound, self._stream, ctypes.c_size_t(self._next), ctypes.c_size_t(warm),
            ctypes.c_size_t(calls),
        )  # fmt: skip
        self._next = (self._next + warm + calls) % self._slots
        return seconds

    def wrong(self) -> int:
        buffers = [self._buffer(self._next, rank) for rank in range(self._ranks)]
        # Both ends are enough: there is no protocol that could lose a part in between.
        ends = [part for b in buffers for part in (b[:_END], b[-_END:])]
        for index, part in enumerate(ends):
            fill(part, index // 2 + 1)
        self.run(0, 1)
        count = sum(differing(part, self._ranks * (self._ranks + 1) // 2) for part in ends)
        for part in ends:
            part[:] = 0
        return count

    def _buffer(self, slot: int, rank: int) -> Array:
        pointer = self._native.bound_buffer(
            self._bound, ctypes.c_size_t(slot), ctypes.c_size_t(rank)
        )
        return np.ctypeslib.as_array(pointer, (self._size // 4,))

    def __del__(self) -> None:
        if hasattr(self, "_bound"):
            self._native.bound_destroy(self._bound)


def entries(group: Group, size: int, ranks: int) -> list[Slices]:
    """The four ways as contenders."""
    return [Slices(Contender(f"bound, {way}", group), BoundWork, size, ranks, way) for way in WAYS]


def record(
    records: Records, group: Group, size: int, ranks: int, samples: dict[str, Sample]
) -> float:
    """Writes the bound of a size; gives its seconds, or 0 if it was not measured."""
    found = {way: samples[f"bound, {way}"] for way in WAYS if f"bound, {way}" in samples}
    if not found:
        return 0.0
    way = min(found, key=lambda one: found[one].median)
    best = found[way]
    records.allreduce(
        Contender("memory bound", group, way), size, best,
        bandwidth=round(2 * size * ranks / best.median / 1e9, 3),
        ways={one: round(sample.median * 1e6, 3) for one, sample in found.items()},
    )  # fmt: skip
    return best.median


def run(records: Records, quick: bool) -> None:
    """The bound at 2, 4 and 8 ranks."""
    effort = Effort.of(quick, 1)
    for ranks in (2, 4) if quick else (2, 4, 8):
        report_failure = records.reporter_of_failures(ranks)
        with groups(["bound"], ranks, report_failure) as up:
            for size in _SIZES[::3] if quick else _SIZES:
                if "bound" not in up or 5 * size * ranks > available_bytes():
                    continue
                samples = compete(entries(up["bound"], size, ranks), effort, report_failure)
                record(records, up["bound"], size, ranks, samples)
