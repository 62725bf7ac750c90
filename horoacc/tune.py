"""`python -m horoacc.tune`: the program that `horoaccrun tune` runs on every rank.

Measures every algorithm of every collective on this job's hosts, and stores the times in this
machine's table (`horoacc.selection_table`), on the host of rank 0.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import horoacc as hvd
from horoacc import _core, basics, dtypes, selection_table, tune_gpus
from horoacc.arena_memory import ArenaBlock
from horoacc.collectives import calls
from horoacc.schedule import format_bytes, format_seconds, parse_bytes
from horoacc.selection_table import LAST_ARRIVER, SLICES, Measurement

LEAST = 1 << 10
FACTOR = 8
BATCHES = 3
BATCH_SECONDS = 0.05
_ALLREDUCE = ("HOROACC_REDUCTION", "HOROACC_ALGORITHM", "HOROACC_LAST_ARRIVER_BYTES")


def main() -> int:
    """Measures and stores; 0, or 1 if the table cannot be written."""
    parser = argparse.ArgumentParser(prog="horoaccrun tune … --", description=__doc__)
    parser.add_argument(
        "--most", type=parse_bytes, default=parse_bytes("32M"), help="the largest vector"
    )
    parser.add_argument("--batch", type=float, default=BATCH_SECONDS, help="seconds of a sample")
    parser.add_argument(
        "--gpus", action="store_true", help="the modes in which GPUs reduce, and nothing else"
    )
    given = parser.parse_args()
    file = selection_table.path(os.environ)
    if file is None:
        parser.error("HOROACC_SELECTION_TABLE is 'off': there is no table to write")
    # The measurement must not use an earlier table.
    os.environ["HOROACC_SELECTION_TABLE"] = "off"
    sizes = [LEAST]
    while sizes[-1] * FACTOR <= given.most:
        sizes.append(sizes[-1] * FACTOR)
    hvd.init()
    (hosts, in_order), first = _hosts(), hvd.rank() == 0
    hvd.shutdown()
    if sum(hosts) == 1:
        parser.error("one rank has nothing to choose between: give -np")
    inside = len(hosts) == 1
    if given.gpus:
        if not inside:
            parser.error("GPUs of several hosts have no modes to choose between")
        measured, refused = tune_gpus.measure(sizes, lambda call: _in_a_row(call, given.batch))
        for mode, why in refused.items() if first else ():
            print(f"not measured: {mode}: {why}")
    else:
        measured = _measure_hosts(hosts, inside, in_order, sizes, given.batch)
    if not first:
        return 0
    _show(measured)
    try:
        selection_table.save(file, measured)
    except OSError as error:
        print(f"the table cannot be written: {error}", file=sys.stderr)
        return 1
    print(f"{len(measured)} measurements of hosts with {', '.join(map(str, hosts))} ranks: {file}")
    return 0


def _measure_hosts(
    hosts: tuple[int, ...], inside: bool, in_order: bool, sizes: list[int], batch: float
) -> list[Measurement]:
    """The algorithms between hosts, or the ways inside one."""
    rounds, clock = (_inside(), _in_a_row) if inside else (rounds_across(in_order), until_the_last)
    return [
        Measurement(algorithm, hosts, size, seconds)
        for forced, calls_of in rounds
        for algorithm, size, seconds in _measure(
            forced, calls_of, sizes, lambda call: clock(call, batch)
        )
    ]


def _hosts() -> tuple[tuple[int, ...], bool]:
    own = np.array([[hvd.local_rank(), hvd.local_size()]])
    return hosts_of([(int(rank), int(size)) for rank, size in hvd.allgather(own, name="hosts")])


def hosts_of(places: list[tuple[int, int]]) -> tuple[tuple[int, ...], bool]:
    """Reads the hosts from where the ranks are.

    Args:
        places: Local rank and local size of each rank; a host's lowest rank is its local rank 0.

    Returns:
        Ranks of each host, and whether ranks are numbered host by host.
    """
    sizes = tuple(size for rank, size in places if rank == 0)
    return sizes, places == [(rank, size) for size in sizes for rank in range(size)]


Calls = dict[str, Callable[[int], Callable[[], object]]]
"""By algorithm: from the bytes of the vector to the call."""
Round = tuple[dict[str, str], Calls]
"""Variables that force algorithms, and those algorithms."""


def _inside() -> Iterable[Round]:
    """The ways of an allreduce in shared memory."""
    for path, limit in ((LAST_ARRIVER, 1 << 40), (SLICES, 0)):
        yield {"HOROACC_LAST_ARRIVER_BYTES": str(limit)}, {path: _arena_allreduce}


def rounds_across(in_order: bool) -> Iterable[Round]:
    """One algorithm of each collective at a time.

    What adds in the order of the ranks treats ranks that are not numbered host by host as hosts of
    one rank each: its times would be another shape's, so that it is left out.
    """
    goals: list[tuple[str, Callable[[int], Callable[[], object]]]] = [
        ("_reduce_scatter", _reducescatter),
        ("_all_gather", _allgather),
        ("_broadcast", _broadcast),
        ("_reduce", _reduce),
        ("_all_to_all", _alltoall),
    ]
    groups: list[list[tuple[str, Any]]] = [[] for _ in range(len(goals) + 1)]
    names = [name for name in _core.algorithms() if in_order or not name.startswith("canonical")]
    for name in names:
        for index, (ending, call) in enumerate(goals):
            if name.endswith(ending) and name != "cpu_reduce":
                groups[index].append((name, call))
                break
        else:
            groups[-1].append((name, _allreduce))
    for together in itertools.zip_longest(*groups):
        chosen = dict(pair for pair in together if pair is not None)
        yield {"HOROACC_ALGORITHM": ",".join(chosen)}, chosen


def _measure(
    forced: dict[str, str], calls_of: Calls, sizes: list[int],
    clock: Callable[[Callable[[], object]], float],
) -> list[tuple[str, int, float]]:  # fmt: skip
    """The time of each algorithm for each size."""
    kept = {name: os.environ.pop(name) for name in _ALLREDUCE if name in os.environ}
    os.environ.update(forced, HOROACC_REDUCTION="fast")
    try:
        hvd.init()
        result = [
            (algorithm, size, clock(make(size)))
            for algorithm, make in calls_of.items()
            for size in sizes
        ]
        hvd.shutdown()
    finally:
        for name in _ALLREDUCE:
            os.environ.pop(name, None)
        os.environ.update(kept)
    return result


def _in_a_row(call: Callable[[], object], batch: float) -> float:
    """The median of some samples, as rank 0 sees it: of calls that no rank leaves before the others
    have come.
    """
    turns = _turns(call, batch)
    samples = []
    for _ in range(BATCHES):
        hvd.barrier()
        began = time.perf_counter()
        for _ in range(turns):
            call()
        samples.append((time.perf_counter() - began) / turns)
    return statistics.median(samples)


def until_the_last(call: Callable[[], object], batch: float) -> float:
    """The median of some calls, each until the last rank is through with it.

    The root of a broadcast is through when its message is on the way, and could begin the next.
    """
    times = np.empty(BATCHES * _turns(call, batch))
    for turn in range(len(times)):
        hvd.barrier()
        began = time.perf_counter()
        call()
        times[turn] = time.perf_counter() - began
    return float(np.median(hvd.allreduce(times, op=hvd.Max, name=f"times{len(times)}")))


def _turns(call: Callable[[], object], batch: float) -> int:
    """How many calls take so many seconds, about; the same on all ranks."""
    call()  # connects, allocates
    began = time.perf_counter()
    call()
    took = time.perf_counter() - began
    turns = max(1, min(200, int(batch / took)))
    return int(hvd.broadcast(np.array([turns]), 0, name="turns")[0])


def _vector(size: int) -> np.ndarray[Any, Any]:
    return np.zeros(max(1, size // 4), np.float32)


def _rows(size: int) -> np.ndarray[Any, Any]:
    """A vector with as many rows as there are ranks."""
    return np.zeros((hvd.size(), max(1, size // 4 // hvd.size())), np.float32)


def _allreduce(size: int) -> Callable[[], object]:
    array = _vector(size)
    return lambda: hvd.allreduce_(array, name=f"allreduce{size}", op=hvd.Sum)


def _reducescatter(size: int) -> Callable[[], object]:
    array = _rows(size)
    return lambda: hvd.reducescatter(array, name=f"reducescatter{size}", op=hvd.Sum)


def _allgather(size: int) -> Callable[[], object]:
    array = _rows(size)[:1]
    return lambda: hvd.allgather(array, name=f"allgather{size}")


def _broadcast(size: int) -> Callable[[], object]:
    array = _vector(size)
    return lambda: hvd.broadcast_(array, 0, name=f"broadcast{size}")


def _alltoall(size: int) -> Callable[[], object]:
    array = _rows(size)
    return lambda: hvd.alltoall(array, name=f"alltoall{size}")


def _reduce(size: int) -> Callable[[], object]:
    """No frontend for arrays has it; process groups of torch.distributed do."""
    array = _vector(size)
    engine = basics.engine()
    pointer = array.ctypes.data
    tensor = (f"reduce{size}", pointer, pointer, array.shape, dtypes.number_of(array.dtype))

    def call() -> None:
        handle = engine.submit(calls.REDUCE, [tensor], op=hvd.Sum, root=0, keep=array)
        engine.wait(handle)
        engine.release(handle)

    return call


def _arena_allreduce(size: int) -> Callable[[], object]:
    array = np.asarray(ArenaBlock(max(1, size // 4)))
    array[:] = 0
    return lambda: hvd.allreduce_(array, name=f"arena{size}", op=hvd.Sum)


def _show(measured: list[Measurement]) -> None:
    sizes = sorted({row.bytes for row in measured})
    print(f"{'algorithm':<22}" + "".join(f"{format_bytes(size):>12}" for size in sizes))
    for algorithm in dict.fromkeys(row.algorithm for row in measured):
        times = {row.bytes: row.seconds for row in measured if row.algorithm == algorithm}
        print(f"{algorithm:<22}" + "".join(f"{format_seconds(times[s]):>12}" for s in sizes))


if __name__ == "__main__":
    sys.exit(main())
