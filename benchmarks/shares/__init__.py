"""Where the time of a call, and of a training step, goes: by samples of the ranks.

Here is what the ranks do for it.
"""

from __future__ import annotations

import os
import time

from benchmarks import lockstep
from benchmarks.rank import Rank


def pid(_: Rank) -> int:
    """Gives the rank's process."""
    return os.getpid()


def span(rank: Rank, copy: str, steps: int) -> tuple[float, float]:
    """Trains a copy, and gives when it began and ended by the monotonic clock."""
    begin = time.monotonic()
    lockstep.train(rank, copy, steps - 1)  # and a first one
    return begin, time.monotonic()


def repeat(rank: Rank, key: str, count: int) -> tuple[float, float]:
    """Does the work of a workload so often; the same."""
    begin = time.monotonic()
    rank.kept[key].run(1, count - 1)
    return begin, time.monotonic()
