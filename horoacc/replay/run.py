"""The ranks' part of a replay: each makes the calls of a recorded rank, and computes in between."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import horoacc as hvd
from horoacc.arena_memory import ArenaBlock
from horoacc.launcher.look.recording import Call, Recording

__all__ = ["Measured", "replay"]

_TYPES = {"bfloat16": "uint16"}
"""NumPy lacks this one; a type of the same size takes its place."""
_LEAST_IN_ARENA = 1 << 16


class Measured(NamedTuple):
    """What rank 0 saw, of the passes that count: medians over their steps."""

    step: float
    """Seconds."""
    waiting: float
    ranks: int


def replay(
    recording: Recording, compute: float, passes: int, arena: bool, idle: bool
) -> Measured | None:
    """Joins the job, replays, and leaves it.

    Args:
        recording: What to do.
        compute: Computation takes so many times as long.
        passes: That count; one more comes before them.
        arena: Whether larger arrays lie where the ranks of a host reduce them in place.
        idle: Whether ranks sleep in the gaps. They do where a host has more ranks than cores: the
            gaps have in them already that ranks had to wait for a core.

    Returns:
        What rank 0 measured; None on the others.
    """
    hvd.init()
    try:
        player = _Player(recording, compute, arena, idle)
        seen = [step for _ in range(passes + 1) for step in player.play()][recording.steps :]
    finally:
        hvd.shutdown()
    if player.rank != 0:
        return None
    step, waiting = (statistics.median(parts) for parts in zip(*seen, strict=True))
    return Measured(step, waiting, player.size)


class _Player:
    def __init__(self, recording: Recording, compute: float, arena: bool, idle: bool) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        crowded = hvd.local_size() > len(os.sched_getaffinity(0))
        self._pass = _sleep if idle or crowded else _work
        self._recording = recording
        self._me = recording.of(self.rank)
        self._compute = compute
        self._arena = arena
        self._arrays: dict[tuple[str, str], Any] = {}
        self._open: dict[int, Callable[[], object]] = {}
        self._names: dict[str, int] = {}
        self._waited = 0.0
        for call in recording.calls:
            self._array(call)

    def play(self) -> list[tuple[float, float]]:
        """One pass over all steps: the seconds that each took, and that this rank waited in it."""
        hvd.barrier()
        self._waited = 0.0
        at = time.perf_counter()
        marks = [(at, 0.0)]
        starts = set(self._recording.starts[1:])
        for gap, waits, number in self._recording.ranks[self._me]:
            if not waits and number in starts:
                marks.append((at, self._waited))
            self._pass(at + self._compute * gap)
            call = self._recording.calls[number]
            if waits:
                self._wait(number)
            elif call.kind == "barrier":
                self._blocked(hvd.barrier)
            else:
                self._wait(self._names.get(call.name, -1))  # one of its name must be over
                at = time.perf_counter()  # what a submission costs is in the next gap
                self._open[number] = self._submit(call)
                self._names[call.name] = number
                continue
            at = time.perf_counter()
        self._wait_for_all()
        marks.append((time.perf_counter(), self._waited))
        return [(after[0] - at[0], after[1] - at[1]) for at, after in itertools.pairwise(marks)]

    def _submit(self, call: Call) -> Callable[[], object]:
        """Starts a call; gives what waits for it."""
        array = self._array(call)
        start: dict[str, Callable[[], int]] = {
            "allreduce": lambda: hvd.allreduce_async_(array, name=call.name, op=hvd.Sum),
            "broadcast": lambda: hvd.broadcast_async_(array, 0, name=call.name),
            "allgather": lambda: hvd.allgather_async(array, name=call.name),
            "alltoall": lambda: hvd.alltoall_async(array, name=call.name),
            "reducescatter": lambda: hvd.reducescatter_async(array, name=call.name, op=hvd.Sum),
        }
        handle = start[call.kind]()
        return lambda: hvd.synchronize(handle)

    def _wait_for_all(self) -> None:
        for number in list(self._open):
            self._wait(number)

    def _blocked(self, call: Callable[[], object]) -> None:
        begun = time.perf_counter()
        call()
        self._waited += time.perf_counter() - begun

    def _wait(self, number: int) -> None:
        if (end := self._open.pop(number, None)) is not None:
            self._names.pop(self._recording.calls[number].name, None)
            self._blocked(end)

    def _array(self, call: Call) -> Any:
        """The memory of a call; of the same name, kind and size it is the same."""
        dtype = np.dtype(_TYPES.get(call.type, call.type or "uint8"))
        size = call.bytes[self._me if call.kind == "allgather" else 0]
        count = size // dtype.itemsize
        if call.kind in ("alltoall", "reducescatter"):
            count = -(-count // self.size) * self.size
        key = (f"{call.kind}.{call.name}", f"{dtype}.{count}")
        if key not in self._arrays:
            in_place = self._arena and call.kind == "allreduce" and size >= _LEAST_IN_ARENA
            array = _in_arena(count, dtype) if in_place else None
            self._arrays[key] = np.ones(count, dtype) if array is None else array
        return self._arrays[key]


def _in_arena(count: int, dtype: np.dtype[Any]) -> Any:
    try:
        array = np.asarray(ArenaBlock(count, dtype.str))
    except MemoryError:
        return None  # it is full, as it may be for a model
    array[...] = 1
    return array


def _sleep(until: float) -> None:
    if (left := until - time.perf_counter()) > 0:
        time.sleep(left)


def _work(until: float) -> None:
    """Keeps a core busy, as computation does."""
    while time.perf_counter() < until:
        pass
