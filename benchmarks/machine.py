"""What this machine is: the facts without which no figure means anything."""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def last_cache_bytes() -> int:
    """The size of the largest cache; 32 MiB if the kernel does not tell."""
    sizes = [32 << 20] if not list(_cache_files()) else []
    for path in _cache_files():
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text))
    return max(sizes)


def _cache_files() -> list[Path]:
    return list(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))


def available_bytes() -> int:
    """The memory that programs can still get without swapping."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) << 10 if found else 4 << 30


def load() -> float:
    """The load average of the last minute: above about 0.3 other work falsifies the figures."""
    return os.getloadavg()[0]


def describe() -> dict[str, Any]:
    """The machine, as a record."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    choice = re.search(r"\[(\w+)\]", pages.read_text()) if pages.exists() else None
    return {
        "benchmark": "machine",
        "processor": found[1] if found else platform.machine(),
        "cores": cores(),
        "last_cache": last_cache_bytes(),
        "kernel": platform.release(),
        "huge_pages": choice[1] if choice else "none",
        "load_before": round(load(), 2),
    }
