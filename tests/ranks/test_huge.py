"""More elements than 32 bits with a sign can count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable")]
    return int(line.split()[1]) << 10


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("body", "env"),
    [("reduce_in_place", {"HOROACC_ARENA": "all"}), ("gather", {}), ("send", {})],
    ids=["reduce", "gather", "send"],
)
def test_more_than_two_to_the_31_elements(pools: Pools, body: str, env: dict[str, str]) -> None:
    needed = 8 << 30
    if available_bytes() < needed:
        pytest.skip(f"needs {needed >> 30} GiB of memory")
    pool = pools.get(2, "horoacc", env | {"HOROACC_FUSION_THRESHOLD": "1048576"})
    try:
        pool.run(HERE, body, {}, 300)
    finally:
        # Its memory is needed elsewhere.
        pool.stop()
        pool.broken = True
