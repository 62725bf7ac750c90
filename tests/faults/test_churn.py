"""Joining and leaving many times leaves nothing behind (row 26); cycles.py has more transports, and
`ranks/test_cycles.py` the frontends of frameworks."""

from __future__ import annotations

import cycles
import pytest


@pytest.mark.parametrize(
    ("way", "times", "ranks"), [("shm", 200, 2), ("hosts", 40, 2), ("shm", 20, 4), ("shm", 10, 8)]
)
def test_cycles_leak_nothing(way: str, times: int, ranks: int) -> None:
    cycles.run(way, times, ranks)
