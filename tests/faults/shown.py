"""Whether measurements show that a ratio keeps its limit, that it does not, or neither."""

from __future__ import annotations

import random
import statistics

KEPT, BROKEN, NOT_SHOWN = 0, 1, 2
"""Exit codes of programs that measure."""


def range_of_median(values: list[float]) -> tuple[float, float]:
    """The range of the median of as many values, 95 times of 100."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], medians[974]


def verdict(values: list[float], most: float) -> tuple[int, str]:
    """Compares the median of values with a limit.

    Args:
        values: Measured one by one.
        most: The limit.

    Returns:
        `KEPT` only if the whole range of the median is within the limit, `BROKEN` if all of it is
        beyond, else `NOT_SHOWN`; and that with the figures in words.
    """
    least, greatest = range_of_median(values)
    code = KEPT if greatest <= most else BROKEN if least > most else NOT_SHOWN
    words = {KEPT: "is within", BROKEN: "is beyond", NOT_SHOWN: "is not shown to be within"}[code]
    median = statistics.median(values)
    return code, f"{median:.3f} ({least:.3f} to {greatest:.3f}) {words} {most:.2f}"
