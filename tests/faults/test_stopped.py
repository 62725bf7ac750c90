"""A rank that is stopped: reported, waited for, and in the end given up (rows 5 and 6)."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from faulted_jobs import FaultedJob
from launcher_jobs import Job

SILENT = re.compile(r"rank 1 \(.*it is stopped.*\) has given no sign of life for (\d+) s")
HOSTS = {"HOROACC_PARTED_HOSTS": "1+1"}


@pytest.mark.parametrize(
    ("size", "phase", "variables"),
    [
        (2, "collective", {}),
        (4, "idle", {}),
        (4, "negotiating", {"HOROACC_PARTED_HOSTS": "2+2"}),
    ],
)
def test_it_is_reported_and_goes_on(
    faulted: FaultedJob, tmp_path: Path, size: int, phase: str, variables: dict[str, str]
) -> None:
    go = tmp_path / "go"
    faulted.start(size, phase, 1, go, **{"HOROACC_SILENCE_WARNING_SECONDS": "2"} | variables)
    faulted.await_phase()
    faulted.signal(1, signal.SIGSTOP)
    faulted.wait_for(lambda: any(map(SILENT.search, faulted.warnings())), "the report")
    faulted.signal(1, signal.SIGCONT)
    faulted.wait_for(
        lambda: any("rank 1 gives signs of life again" in line for line in faulted.warnings()),
        "the second report",
    )
    go.touch()
    assert faulted.end() == 0
    assert sorted(faulted.told) == list(range(size))
    assert not any("error" in told for told in faulted.told.values())
    # Once, whoever says it.
    assert sum(bool(SILENT.search(line)) for line in faulted.warnings()) == 1, faulted.warnings()


def test_it_is_reported_after_five_seconds(faulted: FaultedJob, tmp_path: Path) -> None:
    """What nobody has set: of the time of the silence, the report itself tells."""
    faulted.start(2, "idle", 1, tmp_path / "go")
    faulted.await_phase()
    faulted.signal(1, signal.SIGSTOP)
    faulted.wait_for(lambda: any(map(SILENT.search, faulted.warnings())), "the report")
    faulted.signal(1, signal.SIGCONT)
    (told,) = filter(None, map(SILENT.search, faulted.warnings()))
    assert int(told[1]) >= 5
    (tmp_path / "go").touch()
    assert faulted.end() == 0


@pytest.mark.parametrize(
    ("size", "phase", "variables"),
    [(4, "negotiating", {}), (2, "collective", HOSTS)],
)
def test_it_ends_the_job_at_the_limit(
    faulted: FaultedJob, tmp_path: Path, size: int, phase: str, variables: dict[str, str]
) -> None:
    limits = {"HOROACC_SILENCE_WARNING_SECONDS": "0", "HOROACC_HANG_LIMIT_SECONDS": "2"}
    faulted.start(size, phase, 1, tmp_path / "go", **limits | variables)
    faulted.await_phase()
    faulted.signal(1, signal.SIGSTOP)
    faulted.wait_for(lambda: len(faulted.told) == size - 1, "the survivors' end")
    # The one that was stopped is told as well, once it can listen.
    (tmp_path / "go").touch()
    faulted.signal(1, signal.SIGCONT)
    faulted.wait_for(lambda: len(faulted.told) == size, "its own end")
    assert faulted.end() == 9
    for rank, told in faulted.told.items():
        if rank == 1 and variables == HOSTS and told["error"] == "PeerLost":
            continue  # the other rank has left meanwhile, which it learns at the same time
        assert (told["error"], told["culprit"]) == ("Timeout", 1), told
        assert SILENT.search(told["text"]), told


EIGHT = """
import numpy as np
import horoacc as hvd
hvd.init()
for step in range(200):
    total = hvd.allreduce(np.ones(100_000, np.float32), op=hvd.Sum, name="x")
    assert (total == hvd.size()).all()
print("done", flush=True)
"""


def test_eight_ranks_on_one_core_are_not_silent() -> None:
    """They get it in turn, which is slow, but nobody is stopped (row 24)."""
    core = str(min(os.sched_getaffinity(0)))
    with Job() as job:
        result = job.run("--tcp", "-np", "8", "taskset", "-c", core, sys.executable, "-c", EIGHT)
    assert [result.of(rank) for rank in range(8)] == [["done"]] * 8
    assert "sign of life" not in result.err, result.err
