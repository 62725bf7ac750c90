"""More elements than 32 bits with a sign can count, and objects of more than 2 GiB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arena_arrays import Array, placed
from pool import Pools

import horoacc as hvd

HERE = Path(__file__)
COUNT = (1 << 31) + 3
# Both ends, both sides of 2^31, and the middle of nowhere.
MARKED = np.array([0, 1, 1_234_567_891, (1 << 31) - 1, 1 << 31, COUNT - 1])


def filled(count: int, value: int) -> Array:
    """An array where this pool's tensors lie, without a second one to copy from."""
    return placed(np.broadcast_to(np.uint8(value), (count,)))


def chunks(array: Array) -> Iterator[Array]:
    """Pieces whose comparison stays in the cache."""
    return (array[begin : begin + (1 << 18)] for begin in range(0, len(array), 1 << 18))


def reduce_in_place() -> None:
    mine = filled(COUNT, hvd.rank() + 1)
    mine[MARKED] = MARKED % 50 * (hvd.rank() + 1)
    before = hvd.counters()
    hvd.allreduce_(mine, op=hvd.Sum, name="huge")
    after = hvd.counters()
    assert after["arena_bytes"] - before["arena_bytes"] == COUNT
    assert mine[MARKED].tolist() == (MARKED % 50 * 3).tolist()
    mine[MARKED] = 3
    assert all((part == 3).all() for part in chunks(mine))


def gather() -> None:
    # The parts are of different sizes, and the last begins below 2^31 and ends above.
    counts = [(1 << 30) - 5, (1 << 30) + 8]
    mine = filled(counts[hvd.rank()], hvd.rank() + 1)
    got = hvd.allgather(mine, name="huge")
    assert got.shape == (COUNT,)
    assert all((part == 1).all() for part in chunks(got[: counts[0]]))
    assert all((part == 2).all() for part in chunks(got[counts[0] :]))


def send() -> None:
    mine = filled(COUNT, 2 * hvd.rank())
    if hvd.rank() == 1:
        mine[MARKED] = MARKED % 50
    hvd.broadcast_(mine, 1, name="huge")
    assert mine[MARKED].tolist() == (MARKED % 50).tolist()
    mine[MARKED] = 2
    assert all((part == 2).all() for part in chunks(mine))


class Heavy:
    """Small itself, more than 2 GiB on its way, and `described` when it arrives."""

    def __reduce__(self) -> Any:
        # A bytearray is pickled as it lies; an array or bytes made from one are a copy more.
        data = bytearray(b"\x07") * COUNT
        np.frombuffer(data, np.uint8)[MARKED] = MARKED % 50 + 8
        return described, (data,)


def described(data: Any) -> tuple[int, list[int], int]:
    """Length, the marked bytes, and how many are as they were filled."""
    array = np.frombuffer(data, np.uint8)
    same = sum(int(np.count_nonzero(part == 7)) for part in chunks(array))
    return len(array), array[MARKED].tolist(), same


ARRIVED = (COUNT, (MARKED % 50 + 8).tolist(), COUNT - len(MARKED))


def send_object() -> None:
    got = hvd.broadcast_object(Heavy() if hvd.rank() == 1 else None, root_rank=1)
    assert isinstance(got, Heavy) if hvd.rank() == 1 else got == ARRIVED


def gather_objects() -> None:
    assert hvd.allgather_object(Heavy() if hvd.rank() == 0 else "light") == [ARRIVED, "light"]


def send_with_torch() -> None:
    """As broadcast_object_list does it, but without the copies that pickling makes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("horoacc")
    array = filled(COUNT, 2 - 2 * hvd.rank())
    if hvd.rank() == 0:
        array[MARKED] = MARKED % 50
    dist.broadcast(torch.from_numpy(array), 0)
    assert array[MARKED].tolist() == (MARKED % 50).tolist()
    array[MARKED] = 2
    assert all((part == 2).all() for part in chunks(array))


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable")]
    return int(line.split()[1]) << 10


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("body", "frontend", "env"),
    [
        ("reduce_in_place", "horoacc", {"HOROACC_ARENA": "all"}),
        ("gather", "horoacc", {}),
        ("send", "horoacc", {}),
        ("send_with_torch", "horoacc.torch", {}),
    ],
    ids=["reduce", "gather", "send", "torch.distributed"],
)
def test_more_than_two_to_the_31_elements(
    pools: Pools, body: str, frontend: str, env: dict[str, str]
) -> None:
    on_two_ranks(pools, body, frontend, env)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("body", ["send_object", "gather_objects"], ids=["broadcast", "allgather"])
def test_objects_of_more_than_two_gib(pools: Pools, body: str) -> None:
    on_two_ranks(pools, body, "horoacc", {})


def on_two_ranks(pools: Pools, body: str, frontend: str, env: dict[str, str]) -> None:
    needed = 9 << 30
    if available_bytes() < needed:
        pytest.skip(f"needs {needed >> 30} GiB of memory")
    pool = pools.get(2, frontend, env | {"HOROACC_FUSION_THRESHOLD": "1048576"})
    try:
        pool.run(HERE, body, {}, 300)
    finally:
        # Its memory is needed elsewhere.
        pool.stop()
        pool.broken = True
