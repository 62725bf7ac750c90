"""A rank that does collectives drawn from a seed and checks every bit: chaos_rank.py GO SEED

All ranks draw the same; each submits what is asynchronous in an order of its own. It prints lines
of JSON: its start, from time to time its step, and its end.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import horoacc as hvd

DTYPES = ("int32", "int64", "uint8", "float16", "float32", "float64")
LENGTHS = (0, 1, 17, 1000, 20_000, 300_000)
# Sums of eight ranks' numbers are below it: exact in every type, whatever the order.
MODULUS = 31


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def numbers(rank: int, step: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """What a rank gives in a step; every rank knows it of the others."""
    return ((np.arange(count) * 7 + step * 13 + rank * 5) % MODULUS).astype(dtype)


def check(found: Any, expected: np.ndarray[Any, Any], what: str) -> None:
    if np.asarray(found).tobytes() != expected.tobytes():
        say(wrong=what)
        sys.exit(3)


class Steps:
    """The collectives of one job."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.own = random.Random(seed + 1 + hvd.rank())
        self.step = 0
        self.sets = {
            hvd.add_process_set(members): members
            for members in ([0, 1], [0, 2, 4, 6], [1, 2, 5, 6, 7])
        }

    def allreduce(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        op, ufunc = self.draw.choice(
            [(hvd.Sum, np.add), (hvd.Min, np.minimum), (hvd.Max, np.maximum)]
        )
        if hvd.rank() in members:
            given = [numbers(rank, self.step, count, dtype) for rank in members]
            own = given[members.index(hvd.rank())]
            expected = ufunc.reduce(given, axis=0, dtype=dtype)
            check(hvd.allreduce(own, op=op, name="r", process_set=group), expected, "allreduce")

    def many(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        if hvd.rank() not in members:
            return
        order = list(range(8))
        self.own.shuffle(order)
        give = {at: numbers(hvd.rank(), self.step + at, count // 8, dtype) for at in order}
        handles = {
            at: hvd.allreduce_async(give[at], op=hvd.Sum, name=f"m{at}", process_set=group)
            for at in order
        }
        for at in order:
            given = [numbers(rank, self.step + at, count // 8, dtype) for rank in members]
            expected = np.add.reduce(given, axis=0, dtype=dtype)
            check(hvd.synchronize(handles[at]), expected, "allreduce_async")

    def allgather(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        if hvd.rank() in members:
            given = [numbers(rank, self.step, count // 8 + rank, dtype) for rank in members]
            own = given[members.index(hvd.rank())]
            found = hvd.allgather(own, name="g", process_set=group)
            check(found, np.concatenate(given), "allgather")

    def broadcast(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        root = self.draw.choice(members)
        if hvd.rank() in members:
            own = numbers(hvd.rank(), self.step, count, dtype)
            found = hvd.broadcast(own, root, name="b", process_set=group)
            check(found, numbers(root, self.step, count, dtype), "broadcast")

    def alltoall(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        each = count // 8
        if hvd.rank() in members:
            own = numbers(hvd.rank(), self.step, each * len(members), dtype)
            found = hvd.alltoall(own, name="a", process_set=group)
            found = found[0] if isinstance(found, tuple) else found
            at = each * members.index(hvd.rank())
            parts = [
                numbers(rank, self.step, each * len(members), dtype)[at : at + each]
                for rank in members
            ]
            check(found, np.concatenate(parts), "alltoall")

    def reducescatter(self, count: int, dtype: str, group: Any, members: list[int]) -> None:
        if hvd.rank() in members:
            each = count // 8
            given = [numbers(rank, self.step, each * len(members), dtype) for rank in members]
            at = each * members.index(hvd.rank())
            own = given[members.index(hvd.rank())]
            expected = np.add.reduce(given, axis=0, dtype=dtype)[at : at + each]
            found = hvd.reducescatter(own, op=hvd.Sum, name="s", process_set=group)
            check(found, expected, "reducescatter")

    def one(self) -> None:
        """The next step."""
        self.step += 1
        call = self.draw.choice(
            [
                self.allreduce, self.allreduce, self.many, self.allgather, self.broadcast,
                self.alltoall, self.reducescatter,
            ]
        )  # fmt: skip
        count, dtype = self.draw.choice(LENGTHS), self.draw.choice(DTYPES)
        everybody = (hvd.global_process_set, list(range(hvd.size())))
        group, members = self.draw.choice([everybody, everybody, *self.sets.items()])
        call(count, dtype, group, members)


def run(go: Path, seed: int) -> None:
    """All stop after the same step."""
    hvd.init()
    steps = Steps(seed)
    say(at="start", pid=os.getpid())
    said = 0.0
    while True:
        steps.one()
        if steps.step % 16 == 0:
            over = hvd.allreduce(np.array([go.exists()], np.int32), op=hvd.Max, name="over")
            if np.asarray(over)[0]:
                say(ended=steps.step)
                return
        if time.monotonic() - said > 0.1:
            said = time.monotonic()
            say(step=steps.step)


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    except hvd.errors.HoroaccError as error:
        say(
            error=type(error).__name__, text=str(error), culprit=error.culprit,
            time=time.monotonic(),
        )  # fmt: skip
        hvd.shutdown()
        sys.exit(9)
    hvd.shutdown()
