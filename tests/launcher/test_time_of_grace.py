"""What the other ranks of a job may still do after one has failed, and for how long."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from launcher_jobs import ASLEEP, RANK, Job

# Rank 0 saves for a second, after the test has read that rank 1 failed; rank 2 knows nothing.
PROGRAM = f"""
import os, signal, sys, time
import numpy as np
import horoacc as hvd
from horoacc.errors import PeerLost
folder = sys.argv[1]
hvd.init()
hvd.allreduce(np.ones(3))
if hvd.rank() == 1:
    open(folder + "/died", "w").write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
if hvd.rank() == 2:
    def asked(*_):
        print("asked", time.monotonic(), flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, asked)
    time.sleep({ASLEEP})
try:
    hvd.allreduce(np.ones(3), name="next")
except PeerLost as error:
    deadline = time.monotonic() + 60
    while not os.path.exists(folder + "/told") and time.monotonic() < deadline:
        time.sleep(0.01)
    with open(folder + "/checkpoint", "w") as file:
        for part in range(10):
            file.write(f"part {{part}}\\n")
            file.flush()
            time.sleep(0.1)
    print("saved", error.culprit, time.monotonic(), flush=True)
    sys.exit(3)
"""


def test_survivors_save_what_they_have(job: Job, any_mode: list[str], tmp_path: Path) -> None:
    grace = 12.0  # many times what it takes to save, beside other tests
    process = job.start(
        *any_mode, "-np", "3", "--grace-seconds", str(grace),
        sys.executable, "-c", PROGRAM, str(tmp_path),
    )  # fmt: skip
    assert process.stdout and process.stderr
    said = b"rank 1 was killed by SIGKILL, which the kernel sends when memory runs out; the other "
    said += b"ranks have 12 s to end by themselves\n"
    line = b"-"
    while line and not line.endswith(said):
        line = process.stderr.readline()
    assert line.endswith(said), process.communicate()
    (tmp_path / "told").touch()
    out, err = process.communicate(timeout=300)
    words = {line.split()[1]: line.split()[2:] for line in out.decode().splitlines()}
    assert words["saved"][0] == "1", (out, err)
    assert (tmp_path / "checkpoint").read_text().splitlines() == [f"part {n}" for n in range(10)]
    died = float((tmp_path / "died").read_text())
    assert float(words["asked"][0]) >= died + grace > float(words["saved"][1]), (out, err)
    assert process.returncode == 128 + signal.SIGKILL
    assert b"\nhoroaccrun: rank 1 was killed by SIGKILL" in b"\n" + err
    job.expect_nothing_left()


def by_rank(*programs: str) -> list[str]:
    """A program of each rank."""
    cases = "".join(f"{rank}) {program};; " for rank, program in enumerate(programs))
    return ["sh", "-c", f"case {RANK} in {cases}esac"]


def test_the_job_ends_when_the_last_survivor_does(job: Job, any_mode: list[str]) -> None:
    """Not after the grace, and with the code of the first that failed."""
    programs = by_rank("sleep 1; exit 5", "exit 4", "sleep 2; echo late")
    start = time.monotonic()
    result = job.run(*any_mode, "-np", "3", "--grace-seconds", "60", *programs, code=4)
    assert result.of(2) == ["late"] and time.monotonic() - start < 40
    job.expect_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_cuts_the_grace(
    job: Job, any_mode: list[str], number: int
) -> None:
    programs = by_rank("exit 4", f"trap 'exit 0' INT TERM; sleep {ASLEEP} & wait")
    process = job.start(*any_mode, "-np", "2", "--grace-seconds", str(ASLEEP), *programs)
    assert process.stderr and b"the other ranks have" in process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == 128 + number
    job.expect_nothing_left()


def test_lost_output_cuts_the_grace(job: Job, any_mode: list[str]) -> None:
    talk = "while true; do echo on; sleep 0.1; done"
    process = job.start(
        *any_mode, "-np", "2", "--grace-seconds", str(ASLEEP), *by_rank("exit 4", talk)
    )
    assert process.stderr and b"the other ranks have" in process.stderr.readline()
    assert process.stdout
    process.stdout.close()
    assert process.wait(timeout=300) == 128 + signal.SIGPIPE
    process.stderr.close()
    job.expect_nothing_left()
