"""Joining and leaving many times leaves nothing behind (row 26); cycles.py has more ways."""

from __future__ import annotations

import cycles
import pytest


@pytest.mark.parametrize(("way", "times"), [("board", 200), ("hosts", 40)])
def test_cycles_leak_nothing(way: str, times: int) -> None:
    cycles.run(way, times)
