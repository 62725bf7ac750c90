"""Jobs on two hosts: mpirun starts ranks on the other one through the agent, and they meet."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_jobs import MODES, horoaccrun

from benchmarks.lab import Laboratory, Network

Build = Callable[[Network], Laboratory]
PLACE = """
import os, socket
from horoacc.launcher.environment import detect
p = detect()
numbers = [p.rank, p.size, p.local_rank, p.local_size, p.cross_rank, p.cross_size]
print(" ".join([socket.gethostname(), *map(str, numbers), p.bootstrap]) + "\\n", end="")
"""


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> list[str]:
    """The flags that choose the launcher and the rendezvous."""
    flags = MODES[request.param]
    if not Path(flags[-1]).exists():
        pytest.skip(f"{request.param}: this mpirun is not installed")
    return flags


def test_ranks_start_on_both_hosts_and_know_their_place(build: Build, mode: list[str]) -> None:
    lab = build(Network())
    run = [*mode, "-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", PLACE]
    lines, errors = horoaccrun(lab, *run)
    bootstrap = "tcp" if "--tcp" in mode else "mpi"
    assert lines == {
        rank: [f"h{1 + rank // 2} {rank} 4 {rank % 2} 2 {rank // 2} 2 {bootstrap}"]
        for rank in range(4)
    }
    assert errors == ""


SAME_NAME = """
import ctypes, socket
assert ctypes.CDLL(None).unshare(0x04000000) == 0  # CLONE_NEWUTS: the name is this process's own
socket.sethostname("node")
import numpy as np
import horoacc as hvd
hvd.init()
print(hvd.allreduce(np.ones(10), op=hvd.Sum).tolist() == [4.0] * 10, flush=True)
hvd.shutdown()
"""


def test_hosts_of_one_name_are_two(build: Build) -> None:
    """Machines that were copied, and pods, may have equal names."""
    lab = build(Network())
    run = ["-np", "4", "-H", "h1:2,h2:2", sys.executable, "-c", SAME_NAME]
    lines, errors = horoaccrun(lab, *MODES["tcp over openmpi"], *run)
    assert lines == {rank: ["True"] for rank in range(4)}, errors


@pytest.mark.parametrize("name", ["openmpi", "tcp over openmpi"])
def test_a_failure_on_another_host_ends_the_job(build: Build, name: str) -> None:
    """Hydra ends the others only if the rank that failed had initialised MPI."""
    lab = build(Network())
    mode = MODES[name]
    program = 'if [ "$(hostname)" = h2 ]; then echo bad >&2; exit 3; fi; exec sleep 1000'
    _, errors = horoaccrun(lab, *mode, "-np", "2", "-H", "h1,h2", "sh", "-c", program, code=3)
    assert "[1] bad" in errors and "a rank on another host failed" in errors
    assert "SIGTERM" not in errors
    left = lab.hosts["h1"].run(["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True).stdout
    assert "sleep 1000" not in left and "prted" not in left and "hydra_pmi_proxy" not in left


def test_over_tcp_the_first_host_is_the_launchers(build: Build) -> None:
    lab = build(Network())
    _, errors = horoaccrun(lab, *MODES["tcp over openmpi"], "-H", "h2,h1", "hostname", code=1)
    assert "the ranks meet on the first host, which is h2" in errors
