"""Paired trials: which of two ways is quicker, with what certainty, and what was learned before.

A trial of one way stands beside a trial of the other, taken at about the same time, so that what
else the machine does falls on both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from horoacc import cache, selection_table
from horoacc._version import __version__

LEAST = 12
"""Fewer pairs decide nothing: of twelve, the third and the third last bound the median."""
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Where the median lies, with a probability of at least `CONFIDENCE`."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float]) -> Interval:
    """Bounds the median of a distribution by order statistics, whatever the distribution is.

    The k-th smallest of n values is above the median with the probability that at most k - 1 of n
    coins show heads.

    Args:
        values: Independent values, in any order. Fewer than six bound nothing.

    Returns:
        The interval; infinite where there are too few values.
    """
    count, ordered = len(values), sorted(values)
    if not ordered:
        return Interval(-math.inf, math.nan, math.inf)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    below, outside = 0, 0.0
    while below < count // 2:
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        below += 1
    if below == 0:
        return Interval(-math.inf, median, math.inf)
    return Interval(ordered[below - 1], median, ordered[count - below])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The interval of the quotients of paired times: below 1, ours is the quicker way."""
    return interval([one / other for one, other in zip(ours, theirs, strict=True)])


def key(*parts: Any) -> str:
    """A name for what a choice depends on; HoroACC's version and this machine belong to it."""
    told = json.dumps([__version__, selection_table.machine(), parts], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def recall(environ: Mapping[str, str], kind: str, name: str) -> dict[str, Any] | None:
    """Reads what was remembered; None if there is nothing, or nothing that can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_file(environ, kind, name).read_text())
        if isinstance(found, dict):
            return found
    return None


def remember(environ: Mapping[str, str], kind: str, name: str, what: Mapping[str, Any]) -> None:
    """Keeps something for later jobs, in one step.

    Raises:
        OSError: The cache folder cannot be written.
    """
    file = _file(environ, kind, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text(json.dumps(what, indent=1) + "\n")
    new.replace(file)


def _file(environ: Mapping[str, str], kind: str, name: str) -> Path:
    return cache.folder(environ) / kind / f"{name}.json"
