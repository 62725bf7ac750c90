"""One rank of a job in the laboratory: does what a list of orders says, and rank 0 prints times.

`python -m benchmarks.lab_rank '[{"set": {variable: value}, "do": [{...}, ...]}, ...]'`: with each
entry's variables a job begins anew, and does its measurements: {"call": "allreduce", "bytes": n,
"turns": n, "warm": n, "ranks": [[0, 1], [2, 3]]}. `warm`: turns before those that count, one if it
is left out. `ranks`: process sets that do it at the same time; without it, all. Only the calls are
timed, not what fills arrays and looks at them. Lines of JSON: the order, its times in seconds, what
was wrong, what h1's interfaces sent in the last turn, in bytes and packets, how many connections to
other hosts the first call opened on h1, and how many system calls a call makes there that send and
receive.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import horoacc as hvd
from benchmarks.lab.counters import read_counters


@dataclass(frozen=True)
class Call:
    """A collective: what fills its array, the call, and whether so many of them were right."""

    fill: Callable[[], object]
    make: Callable[[], object]
    right: Callable[[int], bool]


def main() -> None:
    """Does all orders."""
    for entry in json.loads(sys.argv[1]):
        kept = dict(os.environ)
        os.environ.update(entry.get("set", {}))
        hvd.init()
        for number, order in enumerate(entry["do"]):
            _do({"set": entry.get("set", {}), **order}, str(number))
        hvd.shutdown()
        os.environ.clear()
        os.environ.update(kept)


def _do(order: dict[str, Any], name: str) -> None:
    sets = [hvd.add_process_set(ranks) for ranks in order.get("ranks", ())]
    mine = next((s for s in sets if s.included()), None) if sets else hvd.global_process_set
    call = CALLS[order["call"]](order["bytes"], mine, name) if mine is not None else None
    seconds, wrong = [], 0
    batch = order.get("batch", 1)
    opened = sends = receives = 0
    warm = order.get("warm", 1)  # the first connects
    for turn in range(order["turns"] + warm):
        if call is not None:
            call.fill()
        hvd.barrier()
        counted = hvd.counters()
        before, began = read_counters(os.getpid()), time.perf_counter()
        for _ in range(batch if call is not None else 0):
            call.make()
        took = time.perf_counter() - began
        wrong += call is not None and not call.right(batch)
        if turn == 0:  # before the ranks tell each other their times
            hvd.barrier()
            opened = _here(counted, "data_connections")
        sends, receives = (_here(counted, f"data_{way}_calls") for way in ("send", "receive"))
        # Who takes longest says how long it took; a broadcast's root is done before the others.
        took = float(hvd.allreduce(np.array([took]), op=hvd.Max, name="took")[0])
        now = read_counters(os.getpid())
        if turn >= warm:
            seconds.append(took / batch)
    wrong = int(hvd.allreduce(np.array([wrong]), op=hvd.Sum, name="wrong")[0])
    if hvd.rank() == 0:
        sent = {link: (now[link] - before[link]).sent_bytes // batch for link in now}
        packets = {link: (now[link] - before[link]).sent_packets // batch for link in now}
        told = {"time": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
        print(json.dumps({**order, **told, "wrong": wrong, "sent": sent, "packets": packets,
                          "opened": opened, "sends": sends / batch,
                          "receives": receives / batch}), flush=True)  # fmt: skip
    for one in sets:
        hvd.remove_process_set(one)


def _here(before: dict[str, int], counter: str) -> int:
    """What the ranks of rank 0's host have counted since."""
    more = np.array([hvd.counters()[counter] - before[counter], hvd.cross_rank()])
    told = hvd.allgather(more[np.newaxis], name=counter)
    return int(told[told[:, 1] == 0, 0].sum())


def _allreduce(size: int, ranks: Any, name: str) -> Call:
    array = np.ones(size // 4, np.float32)
    return Call(
        lambda: array.fill(1),
        lambda: hvd.allreduce_(array, name=f"a{name}", op=hvd.Sum, process_set=ranks),
        lambda calls: _holds(array, float(ranks.size()) ** calls),
    )


def _reducescatter(size: int, ranks: Any, name: str) -> Call:
    array = np.ones((ranks.size(), size // 4 // ranks.size()), np.float32)
    got: list[Any] = []
    return Call(
        got.clear,
        lambda: got.append(hvd.reducescatter(array, name=f"s{name}", op=hvd.Sum,
                                             process_set=ranks)),
        lambda calls: len(got) == calls and all(_holds(one.ravel(), ranks.size()) for one in got),
    )  # fmt: skip


def _broadcast(size: int, ranks: Any, name: str) -> Call:
    return _rooted(size, ranks, name, ranks.ranks[0])


def _rooted(size: int, ranks: Any, name: str, root: int) -> Call:
    array = np.zeros(size // 4, np.float32)
    return Call(
        lambda: array.fill(7 if hvd.rank() == root else 0),
        lambda: hvd.broadcast_(array, root, name=f"b{name}.{root}", process_set=ranks),
        lambda _: _holds(array, 7),
    )


def _pingpong(size: int, ranks: Any, name: str) -> Call:
    """There and back: two broadcasts."""
    there, back = (_rooted(size, ranks, name, root) for root in ranks.ranks)
    return Call(
        lambda: (there.fill(), back.fill()),
        lambda: (there.make(), back.make()),
        lambda calls: there.right(calls) and back.right(calls),
    )


def _alltoall(size: int, ranks: Any, name: str) -> Call:
    """`size`: what each rank sends to each."""
    array = np.full((ranks.size(), size // 4), hvd.rank(), np.float32)
    got: list[Any] = []
    return Call(
        got.clear,
        lambda: got.append(hvd.alltoall(array, name=f"x{name}", process_set=ranks)),
        lambda calls: len(got) == calls and all(one[:, 0].tolist() == ranks.ranks for one in got),
    )


def _holds(array: Any, value: float) -> bool:
    """In a thousand places."""
    return bool((array[:: max(1, len(array) // 1000)] == np.float32(value)).all())


CALLS: dict[str, Callable[[int, Any, str], Call]] = {
    "allreduce": _allreduce,
    "reducescatter": _reducescatter,
    "broadcast": _broadcast,
    "pingpong": _pingpong,
    "alltoall": _alltoall,
}

if __name__ == "__main__":
    main()
