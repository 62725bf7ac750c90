"""Objects of other hosts are unpickled only with a MAC, whatever carries them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import horoacc as hvd
from horoacc import arrays, errors, objects, process
from horoacc.object_macs import ObjectCalls

KEY = bytes(range(32))
APART = {"HOROACC_SIMULATED_HOSTS": "each"}
BARE = APART | {"HOROACC_LINK_MAC": "none"}


def sealed(sender: int, text: bytes = b"pickled", *, key: bytes = KEY, call: int = 1, **more: Any):
    """A payload of a rank's call."""
    calls = ObjectCalls(key)
    with_defaults = {"kind": "broadcast", "name": "x", "ranks": [0, 1, 2]} | more
    for _ in range(call):
        made = calls.begin(**with_defaults)
    payload = np.frombuffer(bytearray(text + calls.room), np.uint8)
    made.seal(sender, payload)
    return payload


def test_a_mac_is_of_the_job_the_set_the_sender_and_the_call() -> None:
    call = ObjectCalls(KEY).begin("broadcast", "x", [0, 1, 2])
    assert bytes(call.open(1, sealed(1))) == b"pickled"
    assert bytes(call.open(1, sealed(1, b""))) == b""
    flipped = sealed(1)
    flipped[3] ^= 1
    for other in (
        flipped,
        sealed(1)[:-1],
        sealed(1)[:5],
        sealed(1)[:0],
        sealed(1, b"other")[-32:],
        sealed(2),
        sealed(1, key=bytes(32)),
        sealed(1, call=2),
        sealed(1, kind="allgather"),
        sealed(1, name=None),
        sealed(1, name="y"),
        sealed(1, ranks=[0, 1]),
    ):
        with pytest.raises(
            errors.PeerLost, match="object of rank 1 was damaged on its way"
        ) as told:
            call.open(1, other)
        assert told.value.culprit == 1


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
