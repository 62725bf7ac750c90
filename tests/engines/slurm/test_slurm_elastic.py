"""Jobs in an allocation that lose ranks and nodes, or all of themselves; what a start costs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import DETECTION_SECONDS, ROOT, Slurm
from elastic_jobs import Elastic, pids
from launcher_jobs import Job

RUN = (sys.executable, "-m", "horoacc.launcher.main")
HOST_TIMEOUT = 3


def start(slurm: Slurm, elastic: Elastic, tasks: int, *flags: str) -> subprocess.Popen[str]:
    allocate = ("salloc", "--no-kill", f"-n{tasks}", *RUN)
    own = ("--min-np", "2", "--host-timeout-seconds", str(HOST_TIMEOUT), *flags)
    return slurm.popen(*allocate, *elastic.arguments(*own), env=elastic.job.environ())


@pytest.mark.parametrize("by", ["salloc", "sbatch"])
def test_a_rank_is_killed_and_replaced(slurm: Slurm, tmp_path: Path, by: str) -> None:
    elastic = Elastic(Job(), tmp_path, batches=100, seconds=0.05)
    elastic.plan = [
        {"at": "begin", "batch": batch, "rank": rank, "do": "kill"}
        for batch, rank in ((4, 3), (50, 0))
    ]
    if by == "salloc":
        job = start(slurm, elastic, 4)
        _, err = job.communicate(timeout=90)
        assert job.returncode == 0, err
    else:  # horoaccrun is on the first node, where it starts the agent itself
        command = shlex.join([*RUN, *elastic.arguments("--min-np", "2")])
        number = slurm.submit(f"exec {command}", "-N2", "-n4", **elastic.job.environ())
        err = slurm.output(number, 90)
    assert err.count("1 of them new") == 2
    sizes = elastic.check()
    assert sizes[0] == sizes[-1] == 4 and min(sizes) == 3
    elastic.job.expect_nothing_left()


@pytest.mark.parametrize(
    ("how", "limit"),
    [
        # Without its processes its connections end at once; without its cable, nothing tells it.
        ("dead", 3.0),
        ("unplugged", HOST_TIMEOUT + 1.5),
    ],
)
def test_a_node_goes_and_the_job_goes_on(
    own_slurm: Slurm, tmp_path: Path, how: str, limit: float
) -> None:
    elastic = Elastic(Job(), tmp_path, batches=200, seconds=0.05)
    job = start(own_slurm, elastic, 6)
    elastic.job.wait_until(lambda: elastic.reached(5), "the start")
    before = pids(elastic.steps(), 1)
    gone = time.time()
    own_slurm.lose("h4") if how == "dead" else own_slurm.lab.unplug("h4")
    _, err = job.communicate(timeout=90)
    assert job.returncode == 0, err
    assert "host h4 is lost" in err
    assert elastic.check()[:2] == [6, 4]
    second = [line for line in elastic.steps() if line["epoch"] == 2]
    assert pids(second, 2) < before
    # Three seconds more on a busy machine.
    assert min(line["time"] for line in second) - gone < limit + 3
    own_slurm.wait_until(
        lambda: own_slurm.states()["h4"].startswith("down"), "Slurm's word", 6 * DETECTION_SECONDS
    )
    assert {own_slurm.states()[node] for node in ("h2", "h3")} <= {"idle", "completing"}


def test_a_node_without_slurmd_works_until_slurm_takes_it_for_down(
    own_slurm: Slurm, tmp_path: Path
) -> None:
    elastic = Elastic(Job(), tmp_path, batches=2000, seconds=0.05)
    job = start(own_slurm, elastic, 4)
    elastic.job.wait_until(lambda: elastic.reached(5), "the start")
    own_slurm.end_node("h3")
    killed = time.time()
    # Slurm asks nodes now and then; one that does not answer gets SlurmdTimeout.
    own_slurm.wait_until(lambda: own_slurm.states()["h3"].startswith("down"), "Slurm's word", 60)
    down = time.time()
    elastic.job.wait_until(lambda: elastic.steps()[-1]["epoch"] == 2, "the next step", 30)
    first, second = (
        [line for line in elastic.steps() if line["epoch"] == epoch] for epoch in (1, 2)
    )
    assert (first[0]["size"], second[0]["size"]) == (4, 2)
    assert killed + DETECTION_SECONDS < first[-1]["time"]
    # As far as a test sees the state, which it asks for again and again.
    assert second[0]["time"] - down < 3 + 3
    own_slurm.run("scancel", own_slurm.run("squeue", "-h", "-o", "%i").stdout.strip())
    _, err = job.communicate(timeout=60)
    assert "host h3 is lost" in err
    elastic.job.expect_nothing_left()


def test_a_static_job_that_loses_a_node_ends(own_slurm: Slurm) -> None:
    code = (
        "import horoacc as hvd, numpy as np; hvd.init(); print('begun', flush=True)\n"
        "while True: hvd.allreduce(np.ones(3))"
    )
    with Job() as marked:
        command = ("salloc", "-n4", *RUN, sys.executable, "-c", code)
        job = own_slurm.popen(*command, env=marked.environ())
        assert job.stdout
        for _ in range(4):
            assert "begun" in job.stdout.readline()
        own_slurm.lose("h3")
        gone = time.monotonic()
        _, err = job.communicate(timeout=60)
        # Two times of grace, of 2 s, and not Slurm's time to miss the node.
        assert job.returncode != 0 and time.monotonic() - gone < 15
        assert re.search(r"horoaccrun: rank \d on h3 was killed|PeerLost: .*rank [23]", err), err
        marked.expect_nothing_left()


@pytest.mark.timeout(400)
def test_a_requeued_job_finds_its_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    flags = f"--checkpoint {tmp_path}/digits.pt --epochs 20"
    script = (ROOT / "examples" / "slurm.sbatch").read_text().replace('"$@"', flags)
    number = slurm.submit(script.partition("\n")[2])
    log = slurm.folder / "log" / number
    slurm.wait_until(lambda: log.exists() and "epoch 3:" in log.read_text(), "an epoch", 90)
    slurm.run("scontrol", "requeue", number)
    text = slurm.output(number, 200)
    assert "DUE TO JOB REQUEUE" in text
    epochs = [int(word) for word in re.findall(r"epoch (\d+):", text)]
    # An epoch may have been saved and not been told, when the job was stopped.
    assert epochs == sorted(set(epochs)) and epochs[-1] == 20 and len(epochs) >= 19, text
    found = re.search(r"accuracy ([\d.]+) % .* 4 ranks", text)
    assert found and float(found[1]) >= 97.0, text


def test_a_start_costs_at_most_half_a_second(slurm: Slurm) -> None:
    program = str(Path(__file__).with_name("start_cost.py"))
    took = json.loads(slurm.run("salloc", "-N2", "-n2", sys.executable, program).stdout)
    # Whatever else runs on the machine's cores takes its share of them.
    limit = 0.5 * max(1.0, took["load"] / (os.cpu_count() or 1))
    assert took["init"] <= limit and took["horoaccrun"] <= limit, took
