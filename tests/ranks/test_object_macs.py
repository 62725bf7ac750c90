"""Objects of other hosts are unpickled only with a MAC, whatever carries them."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import horoacc as hvd
from horoacc import arrays, errors, objects, process
from horoacc.object_macs import ObjectCall, ObjectCalls

KEY = bytes(range(32))
APART = {"HOROACC_SIMULATED_HOSTS": "each"}
BARE = APART | {"HOROACC_LINK_MAC": "none"}


def sent(sender: int, text: bytes = b"pickled", *, key: bytes = KEY, nth: int = 1, **more: Any):
    """The announcement and payload of a rank's nth call."""
    calls = ObjectCalls(key)
    about = {"kind": "broadcast", "name": "x", "ranks": [0, 1, 2]} | more
    payload = np.frombuffer(bytearray(text + calls.room), np.uint8)
    for _ in range(nth):
        call = ObjectCall(calls, **about)
        row = call.announce(sender, payload.size)
    call.seal(sender, payload)
    return row, payload


def test_macs_are_of_the_job_the_set_the_sender_and_the_call() -> None:
    calls = ObjectCalls(KEY)

    def call() -> ObjectCall:
        return ObjectCall(calls, "broadcast", "x", [0, 1, 2])

    opened = call()
    row, payload = sent(1)
    assert opened.length(1, row) == payload.size
    assert bytes(opened.open(1, payload)) == b"pickled"
    empty = call()
    row, payload = sent(1, b"", nth=2)
    assert empty.length(1, row) == payload.size
    assert bytes(empty.open(1, payload)) == b""
    elsewhere = [
        sent(2),
        sent(1, key=bytes(32)),
        sent(1, nth=2),
        sent(1, kind="allgather"),
        sent(1, name=None),
        sent(1, name="y"),
        sent(1, ranks=[0, 1]),
    ]
    flipped = sent(1)[1]
    flipped[3] ^= 1
    short = [flipped, sent(1)[1][:-1], sent(1)[1][:5], sent(1)[1][:0], sent(1, b"other")[1][-32:]]
    for other in short + [payload for _, payload in elsewhere]:
        with pytest.raises(errors.PeerLost, match="object of rank 1 was damaged on its") as told:
            opened.open(1, other)
        assert told.value.culprit == 1
    changed = [sent(1)[0] for _ in range(6)]
    for index, row in enumerate(changed):
        row[index] ^= 1 << 40
    replayed = sent(1)[0]
    for row in [*changed, replayed, *(row for row, _ in elsewhere)]:
        with pytest.raises(errors.PeerLost, match="length of an object of rank 1 was") as told:
            call().length(1, row)
        assert told.value.culprit == 1


def test_numbers_are_taken_once_in_almost_any_order() -> None:
    calls = ObjectCalls(KEY)
    order = [3, 1, 2, 1000, 999, 4, 5000]
    assert all(calls.take(7, number) for number in order)
    assert not any(calls.take(7, number) for number in [*order, 3976, 0, -1])  # or too old
    assert calls.take(7, 3977)
    assert calls.take(8, 1)


def test_calls_of_ever_new_names_keep_no_memory() -> None:
    calls = [ObjectCalls(KEY), ObjectCalls(KEY)]
    rows = []
    tracemalloc.start()
    try:
        for number in range(3000):
            sender, receiver = (ObjectCall(c, "broadcast", f"x.{number}", [0, 1]) for c in calls)
            rows[:] = [sender.announce(0, 50)]
            assert receiver.length(0, rows[0]) == 50
            if number == 500:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


class Trap:
    """Leaves a mark in a process that unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import sys; sys.horoacc_sprung = True",)


@pytest.mark.ranks(2, 3, env=BARE)
@pytest.mark.parametrize("collective", ["broadcast", "allgather"])
def test_what_was_changed_on_its_way_is_not_unpickled(
    collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = hvd.rank()
    monkeypatch.delattr(sys, "horoacc_sprung", raising=False)

    def changed(array: Any) -> Any:
        if array.dtype == np.uint8:
            array[array.size // 4] ^= 64  # of rank 0
        return array

    with monkeypatch.context() as patch:
        if me == 1 and collective == "broadcast":
            honest = arrays.broadcast_
            patch.setattr(arrays, "broadcast_", lambda array, *a: changed(honest(array, *a)))
        elif me == 1:
            gather = arrays.allgather
            patch.setattr(arrays, "allgather", lambda array, *a: changed(gather(array, *a)))
        sent = [Trap(), "x" * 10000]
        call = {
            "broadcast": lambda: objects.broadcast_object(sent, 0),
            "allgather": lambda: objects.allgather_object(sent),
        }[collective]
        if me == 1:
            with pytest.raises(errors.PeerLost, match="it was not unpickled"):
                call()
        else:
            call()
        assert hasattr(sys, "horoacc_sprung") == (me > 1 or (me == 0 and collective != "broadcast"))
    # The next call is as if nothing had been.
    assert objects.broadcast_object(me, 1) == 1
    assert objects.allgather_object(me) == list(range(hvd.size()))


@pytest.mark.ranks(2, 3, env=BARE)
@pytest.mark.parametrize("length", [5, 1 << 50, -1])
@pytest.mark.parametrize("collective", ["broadcast", "allgather"])
def test_no_memory_is_taken_for_a_length_that_was_changed(
    collective: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = hvd.rank()
    honest = {"broadcast": arrays.broadcast_, "allgather": arrays.allgather}[collective]

    def changed(array: Any, *more: Any) -> Any:
        array = honest(array, *more)
        if array.dtype == np.int64:
            array[0] = length  # of rank 0
        return array

    with monkeypatch.context() as patch:
        if me == 1:
            patch.setattr(arrays, honest.__name__, changed)
        expected = errors.PeerLost if me == 1 else errors.Mismatch
        with pytest.raises(expected, match="length of an object of rank 0 was damaged"):
            if collective == "broadcast":
                objects.broadcast_object("x" * 100, 0)
            else:
                objects.allgather_object("x" * 100)
    # The next call is as if nothing had been.
    assert objects.broadcast_object(me, 1) == 1
    assert objects.allgather_object(me) == list(range(hvd.size()))


@pytest.mark.ranks(2, env=BARE)
def test_a_rank_without_memory_for_an_object_tells_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = hvd.rank()

    def fails(*more: Any) -> Any:
        raise MemoryError("no room for it")

    with monkeypatch.context() as patch:
        if me == 1:
            patch.setattr(ObjectCall, "length", fails)
        with pytest.raises(MemoryError if me == 1 else errors.Mismatch, match="no room for it"):
            objects.broadcast_object("x" * 100, 0)
    assert objects.broadcast_object(me, 1) == 1


@pytest.mark.parametrize("env", [{}, APART, BARE])
@pytest.mark.ranks(2)
def test_every_init_has_a_key_of_its_own_where_one_is_needed(env: dict[str, str]) -> None:
    keys = []
    for _ in range(2):
        hvd.shutdown()
        hvd.init()
        keys.append(process.engine().object_key)
        assert hvd.allgather_object(keys[-1]) == [keys[-1]] * hvd.size()
    assert [len(key) for key in keys] == [32 if env == BARE else 0] * 2
    assert env != BARE or keys[0] != keys[1]
