"""How many cores this process may use: those that it may run on, as far as its quota reaches."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["usable"]

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable() -> int:
    """Gives a whole number, at least 1; of a container's quota the affinity tells nothing."""
    least = min(_quotas(), default=math.inf)
    cores = len(os.sched_getaffinity(0))
    return max(1, cores if least > cores else math.floor(least))


def _quotas() -> Iterator[float]:
    """Cores by the quotas of this process's control groups and of those around them."""
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            base = _GROUPS / kinds if kinds else _GROUPS
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                yield from _quota(base.joinpath(*parts[:depth]))


def _quota(group: Path) -> Iterator[float]:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with contextlib.suppress(OSError):
            words = " ".join((group / name).read_text() for name in names).split()
            if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
                yield int(words[0]) / int(words[1])
