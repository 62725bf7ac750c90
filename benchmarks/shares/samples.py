"""Samples of all threads of some processes while they work, counted by part. Needs `perf`."""

from __future__ import annotations

import collections
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Spans = list[tuple[float, float]]
"""When each process began and ended its work, by the monotonic clock."""
_HERTZ = 2500


def sampled(
    pids: Sequence[int], parts: Mapping[str, str], work: Callable[[], Spans]
) -> tuple[Spans, collections.Counter[str]]:
    """Has processes work, and samples them.

    Args:
        pids: The processes, which sleep now.
        parts: A pattern of "symbol object" for each; a sample counts for the first that fits.
        work: Has them work.

    Returns:
        What `work` gives, and the nanoseconds of each part while all of them worked.
    """
    spans, lines = recorded(
        ["-F", str(_HERTZ), "-p", ",".join(map(str, pids))],
        ["report", "--no-children", "-F", "period,sym,dso", "-t", "\t"], work,
    )  # fmt: skip
    counts: collections.Counter[str] = collections.Counter()
    for line in lines:
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) == 3 and fields[0].isdigit():
            what = f"{fields[1]} {fields[2]}"
            part = next(part for part, pattern in parts.items() if re.search(pattern, what))
            counts[part] += int(fields[0])
    return spans, counts


def recorded(
    events: Sequence[str], show: Sequence[str], work: Callable[[], Spans]
) -> tuple[Spans, list[str]]:
    """Has `perf` record while processes work.

    Args:
        events: Arguments of `perf record`: of what, and what.
        show: A command of `perf` that shows a record, and its arguments.
        work: Has the processes work.

    Returns:
        What `work` gives, and the lines that `show` prints of the time in which all of them worked.
    """
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "record")
        recorder = subprocess.Popen(
            ["perf", "record", "-q", "-k", "mono", *events, "-o", data], stderr=subprocess.DEVNULL
        )
        time.sleep(0.3)  # until it records
        spans = work()
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        first, last = common(spans)
        shown = subprocess.run(
            ["perf", *show, "-i", data, "--time", f"{first:.6f},{last:.6f}"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        )  # fmt: skip
    return spans, shown.stdout.splitlines()


def common(spans: Spans) -> tuple[float, float]:
    """When all of them worked."""
    return max(begin for begin, _ in spans), min(end for _, end in spans)
