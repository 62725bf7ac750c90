"""What goes wrong on one rank is an error on all, by type and by name, and work goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from holdups import Holdups
from interruption import cancelled
from paths import ALL_PATHS

import horoacc as hvd
from horoacc.errors import HorovodInternalError, Mismatch

TELL_SECONDS = 1.0  # the fault matrix's bound for a disagreement


def works() -> None:
    """The engine is usable, with a known name and with an unknown one."""
    for name in ("works", None):
        got = hvd.allreduce(np.full(3, float(hvd.rank() + 1)), name=name, op=hvd.Sum)
        assert got.tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 3


def differ(name: str, how: str) -> None:
    """One call in which the last rank differs from the others."""
    odd = hvd.rank() == hvd.size() - 1
    array = np.ones((4, 3), np.float32)
    if how == "type":
        hvd.allreduce(array.astype(np.int32) if odd else array, name=name)
    elif how == "shape":
        hvd.allreduce(np.ones((4, 2), np.float32) if odd else array, name=name)
    elif how == "dimensions":
        hvd.allreduce(array.ravel() if odd else array, name=name)
    elif how == "operation":
        hvd.allreduce(array, name=name, op=hvd.Sum if odd else hvd.Min)
    elif how == "average":
        hvd.allreduce(array, name=name, op=hvd.Sum if odd else hvd.Average)
    elif how == "prescale":
        hvd.allreduce(array, name=name, prescale_factor=2.0 if odd else 1.0)
    elif how == "postscale":
        hvd.allreduce(array, name=name, postscale_factor=2.0 if odd else 1.0)
    elif how == "root":
        hvd.broadcast(array, 1 if odd else 0, name=name)
    elif how == "columns":
        hvd.allgather(np.ones((2, 4 if odd else 3)), name=name)
    elif how == "gathered type":
        hvd.allgather(np.ones(2, np.int32 if odd else np.int64), name=name)
    elif how == "exchanged type":
        hvd.alltoall(np.ones(2 * hvd.size(), np.int32 if odd else np.int64), name=name)
    elif how == "scattered shape":
        hvd.reducescatter(np.ones((5 if odd else 6, 2)), name=name)
    elif how == "group":
        hvd.grouped_allreduce([array, array[:2] if odd else array], name=name)
    elif how == "group size":
        hvd.grouped_allreduce([array] * (3 if odd else 2), name=name)
    else:
        raise AssertionError(how)


KINDS = ["type", "shape", "dimensions", "operation", "average", "prescale", "postscale", "root",
         "columns", "gathered type", "exchanged type", "scattered shape", "group",
         "group size"]  # fmt: skip


def agree(name: str, how: str) -> None:
    """The call that a warm table knows: the same collective, without the difference."""
    array = np.ones((4, 3), np.float32)
    if how == "root":
        hvd.broadcast(array, 0, name=name)
    elif how == "columns":
        hvd.allgather(np.ones((2, 3)), name=name)
    elif how == "gathered type":
        hvd.allgather(np.ones(2, np.int64), name=name)
    elif how == "exchanged type":
        hvd.alltoall(np.ones(2 * hvd.size(), np.int64), name=name)
    elif how == "scattered shape":
        hvd.reducescatter(np.ones((6, 2)), name=name)
    elif how.startswith("group"):
        hvd.grouped_allreduce([array, array], name=name)
    else:
        hvd.allreduce(array, name=name)


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("table", ["cold", "warm"])
@pytest.mark.ranks(2, 3, 4)
def test_disagreement(how: str, table: str) -> None:
    name = f"{table} {how}"
    for _ in range(3 if table == "warm" else 0):
        agree(name, how)
    with pytest.raises(Mismatch) as error:
        differ(name, how)
    assert isinstance(error.value, HorovodInternalError)
    assert isinstance(error.value, RuntimeError)
    text = str(error.value)
    assert name in text, text
    assert str(hvd.size() - 1) in text, text
    texts = hvd.allgather_object(text)
    assert len(set(texts)) == 1, texts
    works()
    agree(name, how)


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(2, 4, 8)
def test_a_disagreement_is_told_in_time() -> None:
    """From when the last rank has called until the last one has its error, by the clock that all
    processes of the machine share."""
    spans = []
    with Holdups() as holdups:
        for table, how in itertools.product(("cold", "warm"), KINDS):
            name = f"timed {table} {how}"
            for _ in range(3 if table == "warm" else 0):
                agree(name, how)
            hvd.barrier()
            began = time.monotonic()
            with pytest.raises(Mismatch):
                differ(name, how)
            spans.append((began, time.monotonic()))
    told = hvd.allgather_object((spans, holdups.allow(TELL_SECONDS)))
    allowed = max(of_a_rank for _, of_a_rank in told)
    for of_all in zip(*(of_a_rank for of_a_rank, _ in told), strict=True):
        took = max(end for _, end in of_all) - max(begin for begin, _ in of_all)
        assert took < allowed, of_all


@pytest.mark.ranks(2, 3, 4, 8)
def test_groups_of_other_sizes(ranks: int) -> None:
    me = hvd.rank()
    calls = (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter)
    for call in calls:
        # One of them is a single tensor: that is a group too.
        count = 1 if me == 0 else 4
        with pytest.raises(Mismatch, match=r"tensor '\w+\.sizes \(group\)'") as error:
            call([np.ones(4)] * count, name="sizes")
        assert "number of grouped tensors: rank 0 has 1, rank 1 has 4" in str(error.value)
        assert error.value.tensor.endswith(f"sizes_1of{count}")
        works()
    # Two groups of one name at a time, in the same order on every rank.
    handles = [hvd.grouped_allreduce_async([np.full(2, float(count + me))] * count, name="sizes")
               for count in (2, 3)]  # fmt: skip
    with pytest.raises(ValueError, match="sizes_1of3' was submitted again"):
        hvd.grouped_allreduce_async([np.ones(2)] * 3, name="sizes")
    for count, handle in zip((2, 3), handles, strict=True):
        got = hvd.synchronize(handle)
        wanted = count + (ranks - 1) / 2
        assert [part.tolist() for part in got] == [[wanted, wanted]] * count
    # A call that is no group has a name of its own.
    both = hvd.grouped_allreduce_async([np.ones(1)], name="sizes", op=hvd.Sum)
    assert hvd.allreduce(np.ones(1), name="sizes", op=hvd.Max)[0] == 1
    assert hvd.synchronize(both)[0][0] == ranks


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(2, 3, 4, 8)
def test_collective_differs(ranks: int) -> None:
    # Under one name only if the bindings' prefixes are left out, as another binding may.
    from horoacc import _core, basics

    engine = basics.engine()
    array = np.ones(4, np.float32)
    out = np.empty_like(array)
    kind = _core.BROADCAST if hvd.rank() == 0 else _core.ALLREDUCE
    member = ("either", array.ctypes.data, out.ctypes.data, (4,), 8)
    handle = engine.submit(kind, [member], keep=(array, out))
    with pytest.raises(Mismatch, match="either"):
        engine.wait(handle, 30)
    engine.release(handle)
    works()


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(2, 3, 4, 8)
def test_bad_argument_of_one_rank(ranks: int) -> None:
    me = hvd.rank()
    rows = np.ones((2 * ranks, 2))
    even = [2] * ranks
    for label, splits in (("short", [1] * ranks), ("long", [2] * (ranks + 1)),
                          ("negative", [-1, 2 * ranks + 1, *[0] * (ranks - 2)])):  # fmt: skip
        expected = ValueError if me == 0 else HorovodInternalError
        with pytest.raises(expected, match="split"):
            hvd.alltoall(rows, splits if me == 0 else even, name=f"splits {label}")
        works()


@pytest.mark.ranks(1, 2, 3, 4)
def test_bad_arguments_of_all_ranks(ranks: int) -> None:
    with pytest.raises(ValueError, match="root rank 99"):
        hvd.broadcast(np.ones(2), 99)
    with pytest.raises(ValueError, match="complex"):
        hvd.allreduce(np.ones(2, np.complex64), op=hvd.Min)
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(np.ones(2, bool))
    with pytest.raises(ValueError, match="dimension"):
        hvd.allgather(np.float64(1))
    with pytest.raises(RuntimeError, match="only supports"):
        hvd.reducescatter(np.ones(4), op=hvd.Max)
    with pytest.raises(ValueError, match="adasum of int64"):
        hvd.allreduce(np.ones(4, np.int64), op=hvd.Adasum)
    with pytest.raises(ValueError, match="no reduction"):
        hvd.allreduce(np.ones(4), op=17)
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(np.ones(4), op=hvd.Sum, average=True)
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(np.ones(1), average=False)[0] == ranks
    if ranks > 1:
        with pytest.raises(ValueError, match="not divisible"):
            hvd.alltoall(np.ones(2 * ranks + 1))
    with pytest.raises(ValueError, match="at least one"):
        hvd.grouped_allreduce([])
    works()


@pytest.mark.ranks(1, 2)
def test_name_is_held_until_its_handle_is_released(ranks: int) -> None:
    first = hvd.allreduce_async(np.ones(3), name="held", op=hvd.Sum)
    with pytest.raises(ValueError, match="held"):
        hvd.allreduce_async(np.ones(3), name="held", op=hvd.Sum)
    assert hvd.synchronize(first).tolist() == [ranks] * 3
    assert hvd.synchronize(first) is None
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(first)
    again = hvd.allreduce_async(np.ones(3), name="held", op=hvd.Sum)
    assert hvd.synchronize(again).tolist() == [ranks] * 3


@pytest.mark.ranks(2)
def test_poll_waits_for_the_other_rank() -> None:
    if hvd.rank() == 1:
        hvd.broadcast(np.zeros(1), 0, name="go")
    handle = hvd.allreduce_async(np.ones(1), name="late", op=hvd.Sum)
    if hvd.rank() == 0:
        # Rank 1 cannot have submitted it: it waits for what comes next.
        assert not hvd.poll(handle)
        hvd.broadcast(np.zeros(1), 0, name="go")
    assert hvd.synchronize(handle)[0] == 2


@pytest.mark.ranks(2)
def test_what_a_signal_raises_leaves_the_call_in_flight() -> None:
    handle = (
        hvd.allreduce_async(np.ones(3), name="waited for", op=hvd.Sum) if hvd.rank() == 0 else 0
    )
    if hvd.rank() == 0:
        with cancelled(TimeoutError):
            hvd.synchronize(handle)
        assert not hvd.poll(handle)
    hvd.broadcast(np.zeros(1), 0, name="the signal came")
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(np.ones(3), name="waited for", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [2] * 3
    works()


def blocking_calls() -> dict[str, Callable[[str], Any]]:
    """Calls that wait, and give the number of ranks in every place."""
    ones = np.ones(4, np.float32)
    return {
        "allreduce": lambda name: hvd.allreduce(ones, name=name, op=hvd.Sum),
        "allreduce_": lambda name: hvd.allreduce_(ones.copy(), name=name, op=hvd.Sum),
        "group": lambda name: hvd.grouped_allreduce([ones, ones], name=name, op=hvd.Sum)[1],
        "allgather": lambda name: hvd.allgather(ones, name=name)[:4] * hvd.size(),
        "broadcast": lambda name: hvd.broadcast(ones, 1, name=name) * hvd.size(),
        "alltoall": lambda name: hvd.alltoall(ones, name=name) * hvd.size(),
        "part": lambda name: hvd.reducescatter(ones, name=name, op=hvd.Sum),
    }


@pytest.mark.parametrize("what", blocking_calls())
@pytest.mark.ranks(2)
def test_a_signal_leaves_a_blocking_call_and_its_name_is_free_again(what: str) -> None:
    call = blocking_calls()[what]
    name = f"interrupted {what}"
    if hvd.rank() == 0:
        with cancelled(KeyboardInterrupt):
            call(name)
    hvd.broadcast(np.zeros(1), 0, name="the signal came")
    if hvd.rank() == 1:
        assert set(call(name)) == {2}
    hvd.barrier()
    for _ in range(2):
        assert set(call(name)) == {2}
    works()


@pytest.mark.ranks(2)
def test_what_a_signal_raises_ends_the_wait_for_a_process_set() -> None:
    """The ranks still add the set: the call goes on behind the exception."""
    if hvd.rank() == 0:
        with cancelled(TimeoutError, "= engine.add_process_set("):
            hvd.add_process_set([1])
    hvd.barrier()
    number = hvd.add_process_set([1]).process_set_id if hvd.rank() == 1 else None
    with pytest.raises(ValueError, match="exists"):
        hvd.add_process_set([1])
    hvd.basics.engine().remove_process_set(hvd.broadcast_object(number, 1))
    works()


@pytest.mark.ranks(2, 3, 4, 8)
def test_process_set_calls_that_differ() -> None:
    made = hvd.add_process_set([0])
    with pytest.raises(ValueError, match="was asked to"):
        if hvd.rank() == 1:
            hvd.remove_process_set(made)
        else:
            hvd.add_process_set([1])
    unknown = hvd.ProcessSet([1])
    with pytest.raises(ValueError, match="remove"):
        hvd.remove_process_set(unknown if hvd.rank() == 1 else made)
    assert not hvd.remove_process_set(unknown)
    assert hvd.remove_process_set(made)
    works()


@pytest.mark.ranks(2, 3, 4, 8)
@pytest.mark.parametrize("bad", [[0, 0], ["0"], [1 << 40], [-5], []])
def test_bad_process_set_of_one_rank(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="process set"):
        hvd.add_process_set(bad if hvd.rank() == 1 else [0])
    works()


@pytest.mark.ranks(1, 2)
def test_shutdown_and_init_again(ranks: int) -> None:
    from horoacc import basics

    flight = hvd.allreduce_async(np.ones(1), name="left behind") if ranks == 1 else None
    if flight is not None:
        hvd.synchronize(flight)
    assert hvd.is_initialized()
    hvd.barrier()
    left = hvd.allreduce_async(np.ones(1), name="never synchronised", op=hvd.Sum)
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"use hvd\.init"):
        hvd.rank()
    with pytest.raises(ValueError, match=r"use hvd\.init"):
        hvd.allreduce(np.ones(1))
    with pytest.raises(ValueError, match=r"use hvd\.init"):
        hvd.start_timeline("nowhere")
    hvd.init()
    hvd.init()
    assert hvd.size() == ranks
    assert basics.counters()["submissions"] == 0
    # Its number is no other call's, however many the new engine has.
    later = [hvd.allreduce_async(np.full(1, 7.0), name=f"new {i}") for i in range(4)]
    assert left not in later
    assert hvd.synchronize(left) is None
    assert [hvd.synchronize(handle)[0] for handle in later] == [7] * 4
    works()


@pytest.mark.ranks(1, 2)
def test_forked_child_is_told(ranks: int) -> None:
    import os

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce(np.ones(1))
            said = "nothing"
        except HorovodInternalError as error:
            said = str(error)
        os.write(write, f"{hvd.rank()} {hvd.size()} {said}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told.startswith(f"{hvd.rank()} {ranks} this process was forked"), told
    works()
