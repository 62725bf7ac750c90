"""Fewer cores than ranks, and a quota of processor time (row 24): slow, not silent, not stuck."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulted_jobs import FaultedJob
from launcher_jobs import Job

LEAST_PACE = 0.3  # of that with all cores: the fault matrix's bound
EIGHT = """
import json, os, sys, time
import numpy as np
import horoacc as hvd
hvd.init()

def seconds_used():
    hvd.barrier()
    begun = time.process_time()
    for step in range(100):
        total = hvd.allreduce(np.ones(100_000, np.float32), op=hvd.Sum, name="x")
        assert (total == hvd.size()).all()
    used = np.array([time.process_time() - begun])
    return float(hvd.allreduce(used, op=hvd.Sum, name="used")[0])

few = seconds_used()
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), json.loads(sys.argv[1]))
print(few, seconds_used(), flush=True)
"""


def test_eight_ranks_on_one_core() -> None:
    """The ranks get it in turn, which is slow, but no rank counts as stopped, and none spends it on
    waiting: the pace is measured in steps for a second of the processors' time, so that other work
    on the machine does not count."""
    cores = sorted(os.sched_getaffinity(0))
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "8", "taskset", "-c", str(cores[0]),
            sys.executable, "-c", EIGHT, json.dumps(cores),
        )  # fmt: skip
    told = [result.of(rank) for rank in range(8)]
    few, enough = map(float, told[0][0].split())
    print(f"100 steps on one core: {few:.2f} s of processor; on {len(cores)}: {enough:.2f} s")
    assert told == [told[0]] * 8
    assert enough / few >= LEAST_PACE
    assert "sign of life" not in result.err, result.err


class Quota:
    """A control group that gets so much processor time in every tenth of a second."""

    def __init__(self, milliseconds: int, processes: list[int]) -> None:
        first = Path("/sys/fs/cgroup/cpu")
        self._parent = first if first.exists() else Path("/sys/fs/cgroup")
        self._group = self._parent / f"horoacc-test-{os.getpid()}"
        self._group.mkdir()
        try:
            # As much as they would have got each by itself, up to the quota.
            if first.exists():
                self._write("cpu.shares", 1024 * len(processes))
                self._write("cpu.cfs_period_us", 100_000)
                self._write("cpu.cfs_quota_us", 1000 * milliseconds)
            else:
                self._write("cpu.weight", 100 * len(processes))
                self._write("cpu.max", f"{1000 * milliseconds} 100000")
            for process in processes:
                self._write("cgroup.procs", process)
        except OSError:
            self.end()
            raise

    def _write(self, name: str, what: object) -> None:
        (self._group / name).write_text(f"{what}\n")

    def times_throttled(self) -> int:
        lines = (self._group / "cpu.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines)["nr_throttled"])

    def end(self) -> None:
        for process in (self._group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._parent / "cgroup.procs").write_text(f"{process}\n")
        self._group.rmdir()


@contextlib.contextmanager
def quota(milliseconds: int, processes: list[int]) -> Iterator[Quota]:
    try:
        group = Quota(milliseconds, processes)
    except OSError as error:
        pytest.skip(f"no control group with a quota can be made here: {error}")
    try:
        yield group
    finally:
        group.end()


def test_a_quota_of_processor_time_is_no_silence(another: Callable[..., FaultedJob]) -> None:
    """All ranks stand still for most of the time."""
    jobs = [another(2, "negotiating", 1), another(4, "collective", 1)]
    for job in jobs:
        job.await_phase()
        job.err.clear()  # warnings from before, of the machine's load
    with quota(20, [pid for job in jobs for pid in job.pids.values()]) as group:
        time.sleep(8)  # a silence is told of after 5 s
        assert group.times_throttled() > 0
    for job in jobs:
        job.go.touch()
    for job in jobs:
        assert job.end() == 0, (job.phase, job.told)
        assert not job.warnings(), job.warnings()
