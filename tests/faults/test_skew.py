"""Ranks that were started with different settings (row 27), and the clocks that count (row 28)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launcher_jobs import Job

CORE = Path(__file__).resolve().parents[2] / "csrc"

PROGRAM = """
import os, sys
rank = os.environ["HOROACC_RANK"]
for word in sys.argv[1:]:
    name, _, values = word.partition("=")
    os.environ[name] = values.split(",")[int(rank) % len(values.split(","))]
import numpy as np
import horoacc as hvd
try:
    hvd.init()
except hvd.errors.ConfigError as error:
    print(error.culprit, error, flush=True)
    sys.exit(3)
arrays = [np.full(1000 + k, hvd.rank() + 1.5, np.float32) for k in range(20)]
handles = [hvd.allreduce_async(a, op=hvd.Sum, name=f"x{k}") for k, a in enumerate(arrays)]
total = sum(rank + 1.5 for rank in range(hvd.size()))
assert all((hvd.synchronize(handle) == total).all() for handle in handles)
print("right", flush=True)
"""


@pytest.mark.parametrize("size", [2, 4])
def test_what_may_differ_is_agreed_on(size: int) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", str(size), sys.executable, "-c", PROGRAM,
            "HOROACC_FUSION_THRESHOLD=0,67108864", "HOROACC_LAST_ARRIVER_BYTES=0,1048576",
            "HOROACC_WINDOW_BYTES=65536,4096", "HOROACC_REDUCE_PATH=auto,windows",
        )  # fmt: skip
    assert [result.of(rank) for rank in range(size)] == [["right"]] * size


@pytest.mark.parametrize("size", [2, 4])
def test_what_must_not_differ_is_told_to_all(size: int) -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", str(size), sys.executable, "-c", PROGRAM,
            "HOROACC_CONTROL=" + ",".join(["auto"] * (size - 1) + ["tcp"]), code=3,
            HOROACC_GRACE_SECONDS="30",
        )  # fmt: skip
    last = size - 1
    text = f"{last} setting 'control' differs: rank 0 has 'auto', rank {last} has 'tcp'"
    told = [line for rank in range(size) for line in result.of(rank)]
    assert told and set(told) == {text}, result


def test_a_clock_that_jumps_is_used_for_stamps_only() -> None:
    wall = re.compile(r"CLOCK_REALTIME|system_clock|gettimeofday|\btime\(nullptr\)|std::time\b")
    users = {
        path.relative_to(CORE).as_posix()
        for path in CORE.rglob("*.[ch]*")
        if wall.search(path.read_text())
    }
    # Stamps of a line of the log, of a record and of a trace.
    stamping = {"base/log.cc", "runtime/trace/telemetry.cc", "runtime/trace/trace_file.cc"}
    assert users == stamping, users
