"""The stall inspector: its warning names the ranks, follows the log level, and the job goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_jobs import Job

LATE = """
import os, sys, time
import numpy as np
import horoacc as hvd

hvd.init()
if len(sys.argv) > 2:
    hvd.barrier()
    print(sys.argv[2], flush=True)
if hvd.rank() % 2 == 1:
    deadline = time.monotonic() + 50
    while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
        time.sleep(0.01)
print(hvd.allreduce(np.ones(3), name="gradients", op=hvd.Sum).tolist(), flush=True)
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_warning_names_tensor_and_ranks_and_the_job_goes_on(
    job: Job, tmp_path: Path, size: int
) -> None:
    go = tmp_path / "go"
    process = job.start(
        "--tcp", "-np", str(size), "--stall-check-warning-time-seconds", "0.5",
        sys.executable, "-c", LATE, str(go),
    )  # fmt: skip
    assert process.stderr is not None
    ready, late = (", ".join(map(str, range(first, size, 2))) for first in (0, 1))
    begun = time.monotonic()
    line = process.stderr.readline().decode()
    assert time.monotonic() - begun >= 0.5
    words = rf"'allreduce.gradients' has waited for \d+ s: rank\(s\) {ready} are ready, "
    assert re.search(words + rf"rank\(s\) {late} have not submitted it", line), line
    # Of the ranks that wait, the first whose stall limit passes warns.
    assert re.match(r"\[([0246])\] horoacc \d\d:\d\d:\d\d rank \1 warning: ", line), line
    go.touch()
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0 and err == b""
    total = float(size)
    assert sorted(out.decode().splitlines()) == [f"[{r}] {[total] * 3}" for r in range(size)]
    job.expect_nothing_left()


@pytest.mark.parametrize(
    ("level", "shown"),
    [("warning", {"warning", "error"}), ("error", {"error"}), ("fatal", set())],
)
def test_log_level(job: Job, tmp_path: Path, level: str, shown: set[str]) -> None:
    """A stall is a warning, the end of a job an error."""
    result = job.run(
        "--tcp", "-np", "2", sys.executable, "-c", LATE, str(tmp_path / "never"),
        HOROACC_LOG_LEVEL=level, HOROACC_LOG_HIDE_TIME="1", HOROACC_GRACE_SECONDS="0",
        HOROVOD_STALL_CHECK_TIME_SECONDS="0.5", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1.5",
        code=None,
    )  # fmt: skip
    assert result.code != 0 and "Timeout: tensor 'allreduce.gradients' was not" in result.err
    assert set(re.findall(r"horoacc rank 0 (\w+): ", result.err)) == shown


def test_it_can_be_turned_off(job: Job, tmp_path: Path) -> None:
    go = tmp_path / "go"
    process = job.start(
        "--tcp", "-np", "2", "--no-stall-check", "--stall-check-warning-time-seconds", "0.2",
        "--stall-check-shutdown-time-seconds", "0.4", sys.executable, "-c", LATE, str(go),
        "up",
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().endswith(b"up\n")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)  # the stall check runs ten times a second
    go.touch()
    _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, b"")
