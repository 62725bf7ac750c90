"""Jobs in the laboratory that measure what they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import Laboratory
from benchmarks.systems import environ

MPIRUN = Path(sys.executable).parent / "mpirun"
MIB = 1 << 20
SECONDS = 200
Order = dict[str, Any]


def order(call: str, size: int, turns: int, **more: Any) -> Order:
    """A measurement, as `lab_rank` reads it."""
    return {"call": call, "bytes": size, "turns": turns, **more}


def measure(
    lab: Laboratory, hosts: str, entries: Sequence[tuple[dict[str, str], Sequence[Order]]],
    mode: str = "--tcp",
) -> list[Order]:  # fmt: skip
    """Runs one job that does all measurements.

    Args:
        lab: Where.
        hosts: As for `horoaccrun -H`.
        entries: Variables, and what to measure with them.
        mode: How ranks meet.

    Returns:
        The orders with their times, in turn.

    Raises:
        subprocess.SubprocessError: The job failed or took too long.
    """
    orders = json.dumps([{"set": variables, "do": list(do)} for variables, do in entries])
    done = lab.hosts["h1"].run(
        [sys.executable, "-m", "horoacc.launcher.main", mode, "--mpirun", str(MPIRUN),
         "-H", hosts, sys.executable, "-m", "benchmarks.lab_rank", orders],
        env=environ() | {"HOROACC_SELECTION_TABLE": "off"}, stdout=subprocess.PIPE, text=True,
        check=True, timeout=SECONDS,
    )  # fmt: skip
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    if wrong := [line for line in told if line["wrong"]]:
        raise subprocess.SubprocessError(f"wrong results: {wrong}")
    return told


def shape(hosts: Sequence[int]) -> str:
    """h1:2,h2:2 for [2, 2]."""
    return ",".join(f"h{index + 1}:{ranks}" for index, ranks in enumerate(hosts))
