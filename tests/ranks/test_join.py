"""Ranks that run out of data: zeros stand for them, and everything is as before afterwards."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arena_arrays
import numpy as np
import oracle
import pytest
from arena_arrays import placed
from interruption import cancelled
from paths import ALL_PATHS, CONTROL_PATHS, DATA_PATHS, only

import horoacc as hvd
from horoacc.errors import HorovodInternalError, Mismatch

PATHS = [*only(DATA_PATHS, 2, 3, 4), *only(CONTROL_PATHS, 3), *ALL_PATHS[-2:]]
DTYPES = ("bool", "uint8", "int64", "float16", "float32", "float64", "complex64")
SHAPES = ((5,), (9001,))


def inputs(
    dtype: str, shape: tuple[int, ...], label: str, steps: list[int], step: int
) -> list[Any]:
    """What each rank contributes in a step: zeros, if it has no such step."""
    given = [oracle.values(dtype, shape, rank, f"{label}.{step}") for rank in range(hvd.size())]
    return [x if step < steps[rank] else np.zeros_like(x) for rank, x in enumerate(given)]


def run(dtype: str, steps: list[int], label: str) -> None:
    """Every rank makes its number of steps and joins."""
    me = hvd.rank()
    for step in range(steps[me]):
        for shape in SHAPES:
            for word, op in oracle.OPS.items():
                if not oracle.has_meaning(dtype, op):
                    continue
                name = f"{dtype}.{shape}.{word}"
                given = inputs(dtype, shape, label + name, steps, step)
                got = hvd.allreduce(placed(given[me]), name=name, op=op)
                oracle.same_bits(got, oracle.reduce(given, op), f"{name} step {step} of {label}")
        given = inputs(dtype, (3, 7), label + "unnamed", steps, step)
        got = hvd.allreduce(placed(given[me]), op=hvd.Sum)
        oracle.same_bits(got, oracle.reduce(given, hvd.Sum), f"unnamed, step {step} of {label}")
        parts = [inputs(dtype, shape, label + "group", steps, step) for shape in SHAPES]
        mine = [placed(part[me]) for part in parts]
        hvd.grouped_allreduce_(mine, name=f"{dtype}.group", op=hvd.Sum)
        for got, part in zip(mine, parts, strict=True):
            oracle.same_bits(got, oracle.reduce(part, hvd.Sum), f"group, step {step} of {label}")
    assert hvd.join() == steps.index(max(steps)), f"the last to join in {label}"


@pytest.mark.parametrize("env", PATHS)
@pytest.mark.ranks(1, 2, 3, 4)
def test_uneven_steps(dtypes: tuple[str, ...] = DTYPES) -> None:
    """Cold, with the plan built, and after a join; each rank is once the last."""
    size = hvd.size()
    for turn, dtype in enumerate(dtypes):
        for last in range(size) if size < 4 else range(turn % 2, size, 2):
            steps = [1 + 2 * ((rank - last - 1) % size) for rank in range(size)]
            run(dtype, steps, f"{dtype}.{last}")
            own = oracle.values(dtype, (4,), hvd.rank(), "after")
            given = [oracle.values(dtype, (4,), rank, "after") for rank in range(size)]
            oracle.same_bits(
                hvd.allreduce(own, op=hvd.Sum), oracle.reduce(given, hvd.Sum), "after the join"
            )
            assert hvd.allgather(np.array([hvd.rank()])).tolist() == list(range(size))
    if arena_arrays.expected():
        assert hvd.counters()["arena_bytes"] > 0


@pytest.mark.parametrize("env", [*DATA_PATHS[:2], *CONTROL_PATHS])
@pytest.mark.ranks(2, 3, 4, 8)
def test_calls_in_flight_are_carried_out(ranks: int) -> None:
    """A rank may join before it waits for what it has submitted, large or in half a bucket."""
    for round in range(6):
        arrays = [np.full(n, hvd.rank() + 1.0, np.float32) for n in (3, 70000, 5, 9)]
        last = round % ranks
        flights = [
            hvd.allreduce_async(array, name=f"flight.{k}", op=hvd.Sum)
            for k, array in enumerate(arrays)
            if hvd.rank() == last or k < 2
        ]
        if hvd.rank() == last:
            got = [hvd.synchronize(flight) for flight in flights]
        assert hvd.join() in range(ranks)
        if hvd.rank() != last:
            got = [hvd.synchronize(flight) for flight in flights]
        for k, result in enumerate(got):
            wanted = ranks * (ranks + 1) / 2 if k < 2 else last + 1.0
            assert (result == wanted).all(), (round, k, result[0], wanted)


@pytest.mark.parametrize("env", [{}, *CONTROL_PATHS[:1]])
@pytest.mark.ranks(2, 3, 4, 8)
def test_other_collectives_name_the_joined_ranks(ranks: int) -> None:
    if hvd.rank() == 0:
        calls: dict[str, Any] = {
            "allgather": lambda: hvd.allgather(np.ones(2), name="g"),
            "broadcast": lambda: hvd.broadcast(np.ones(2), 0, name="b"),
            "alltoall": lambda: hvd.alltoall(np.ones(24), name="a"),
            "reducescatter": lambda: hvd.reducescatter(np.ones(24), name="r", op=hvd.Sum),
            "barrier": hvd.barrier,
        }
        named = ", ".join(str(rank) for rank in range(1, ranks))
        for word, call in calls.items():
            with pytest.raises(Mismatch, match=rf"{word} is not possible .*rank\(s\) {named} have"):
                call()
            assert hvd.allreduce(np.ones(3), name="goes on", op=hvd.Sum).tolist() == [1, 1, 1]
        with pytest.raises(HorovodInternalError, match="have joined"):
            hvd.add_process_set([0])
    assert hvd.join() == 0
    hvd.barrier()
    added = hvd.add_process_set([0])
    assert hvd.remove_process_set(added)


@pytest.mark.ranks(3)
def test_other_process_sets_go_on(ranks: int) -> None:
    """A rank that has joined the global set still takes part in a smaller one, from a thread."""

    pair = hvd.add_process_set([0, 1])
    joined: list[int] = []
    if hvd.rank() == 1:
        before = hvd.counters()["submissions"]
        thread = threading.Thread(target=lambda: joined.append(hvd.join()))
        thread.start()
        while hvd.counters()["submissions"] == before:
            time.sleep(0.001)
    if hvd.rank() < 2:
        for _ in range(3):
            got = hvd.allreduce(np.ones(2), name="of the pair", op=hvd.Sum, process_set=pair)
            assert got.tolist() == [2, 2]
    if hvd.rank() == 1:
        thread.join()
    else:
        joined.append(hvd.join())
    assert joined[0] in (0, ranks - 1)
    hvd.remove_process_set(pair)


@pytest.mark.ranks(2)
def test_an_interrupted_join_is_waited_for_again() -> None:
    """Whether the join ends before the rank comes back or after."""
    place = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else "", 0)
    for turn in ("after", "before"):
        rung, ended = (Path(place) / f"{word} {turn}" for word in ("rung", "ended"))
        if hvd.rank() == 1:
            with cancelled(TimeoutError):
                hvd.join()
            with pytest.raises(ValueError, match="has joined"):
                hvd.allreduce(np.ones(1))
            rung.touch()
            if turn == "before":
                _await(ended.exists)
        else:
            while not rung.exists():
                assert hvd.allreduce(np.ones(1), name="alone", op=hvd.Sum).tolist() == [1]
        assert hvd.join() == 0
        ended.touch()
        assert hvd.allreduce(np.ones(1), op=hvd.Sum).tolist() == [2]
    if hvd.rank() == 0:
        shutil.rmtree(place)


def _await(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


@pytest.mark.ranks(1)
def test_alone() -> None:
    for _ in range(3):
        assert hvd.join() == 0
        assert hvd.allreduce(np.ones(1), op=hvd.Sum).tolist() == [1]


@pytest.mark.ranks(1, 2, 3, 4)
def test_a_device_is_a_number(ranks: int) -> None:
    with pytest.raises(TypeError):
        hvd.join("cpu")  # type: ignore[arg-type]
    assert hvd.join(device=0) in range(ranks)


@pytest.mark.ranks(2, framework="horoacc.torch")
def test_gradients_of_the_last_rank_are_divided_by_all() -> None:
    """An optimizer whose ranks have different numbers of batches."""
    import torch

    import horoacc.torch as hvt

    weight = torch.nn.Parameter(torch.zeros(3))
    bias = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvt.DistributedOptimizer(
        torch.optim.SGD([weight, bias], lr=1.0),
        named_parameters=[("weight", weight), ("bias", bias)],
    )
    batches = 3 + 4 * hvt.rank()
    for _ in range(batches):
        optimizer.zero_grad()
        (weight.sum() * (hvt.rank() + 1) + 2 * bias.sum()).backward()
        optimizer.step()
    assert hvt.join() == 1
    if hvt.rank() == 1:
        # Three steps of (1 + 2) / 2, then four of (0 + 2) / 2.
        assert weight.tolist() == [-8.5] * 3
        assert bias.tolist() == [-10.0]
    hvt.broadcast_parameters({"weight": weight, "bias": bias}, root_rank=1)
    assert weight.tolist() == [-8.5] * 3
