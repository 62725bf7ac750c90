"""Elastic jobs on two hosts: an agent on each, of which mpirun starts the other's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_jobs import Elastic, pids
from lab_jobs import MODES, ROOT
from launcher_jobs import Job

from benchmarks.lab import Laboratory, Network, missing

FLAGS = ("-H", "h1:2,h2:2", "-np", "4", "--min-np", "2", "--host-timeout-seconds", "3")


def start(lab: Laboratory, elastic: Elastic, *flags: str, **more: str) -> subprocess.Popen[str]:
    environ = elastic.job.environ(PYTHONPATH=str(ROOT), TMPDIR=str(elastic.folder), **more)
    command = [sys.executable, "-m", "horoacc.launcher.main", *MODES["tcp over openmpi"][1:]]
    return lab.hosts["h1"].popen(
        [*command, *elastic.arguments(*FLAGS, *flags)],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ranks_die_on_either_host_and_are_replaced_there(
    build: Callable[[Network], Laboratory], tmp_path: Path
) -> None:
    elastic = Elastic(Job(), tmp_path, batches=150, seconds=0.05)
    elastic.plan = [
        {"at": "begin", "batch": batch, "rank": rank, "do": "kill"}
        for batch, rank in ((4, 0), (60, 3))
    ]
    job = start(build(Network()), elastic)
    _, err = job.communicate(timeout=300)
    assert job.returncode == 0, err
    sizes = elastic.check()
    assert sizes[0] == sizes[-1] == 4 and min(sizes) == 3
    assert err.count("1 of them new") == 2
    elastic.job.expect_nothing_left()


@pytest.mark.parametrize("how", ["unplugged", "stopped"])
def test_a_host_goes_and_the_other_goes_on(how: str) -> None:
    if reason := missing():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder, Laboratory(Network()) as lab:
        elastic = Elastic(Job(), Path(folder), batches=60, seconds=0.05)
        job = start(lab, elastic, "--failures-per-host", "1")
        elastic.job.wait_until(lambda: elastic.reached(5), "the start")
        gone = time.time()
        if how == "unplugged":
            lab.unplug("h2")
        else:
            kill(elastic.job, "h2")
        _, err = job.communicate(timeout=300)
        assert job.returncode == 0, err
        assert "host h2 is lost" in err
        assert elastic.check()[:2] == [4, 2]
        second = [line for line in elastic.steps() if line["epoch"] == 2]
        assert pids(second, 2) < pids(elastic.steps(), 1)
        limit = 3 + 1.5 + 5 if how == "unplugged" else 6
        assert min(line["time"] for line in second) - gone < limit


def kill(job: Job, host: str) -> None:
    """Kills the agent of a host, which is the head of its workers."""
    for pid, line in sorted(job.alive()):
        if line.split()[-3::2] == ["horoacc.launcher.elastic.agent", host]:
            os.kill(pid, 9)
            return
    raise AssertionError(f"no agent of {host} among {job.alive()}")
