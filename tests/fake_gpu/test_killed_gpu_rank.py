"""A rank is killed while GPUs reduce: the others get an error, and no stream stays behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import fake_gpu
import pytest
from holdups import Holdups

RELEASE_SECONDS = 5.0  # the fault matrix's bound


@pytest.mark.parametrize(
    ("mode", "ranks", "op", "turn"),
    [
        *[(*case, "Max", 60) for case in (
            ("leader", 4), ("stream", 2), ("kernel", 2), ("cpu_reduce", 3), ("nccl", 3),
            ("leader", 8), ("stream", 8), ("auto on 2+2", 4), ("nccl on 2+2", 4),
        )],
        # A call of Adasum has seven windows here, which pass twice, and the hosts' sums between.
        *[("stream", 3, "Adasum", turn) for turn in (45, 52, 60, 75)], ("leader", 3, "Adasum", 60),
    ],
)  # fmt: skip
def test_a_killed_rank_releases_the_others(mode: str, ranks: int, op: str, turn: int) -> None:
    mode, _, hosts = mode.partition(" on ")
    env = dict(
        os.environ,
        HOROACC_CUDA_PLUGIN=str(fake_gpu.plugin()),
        HOROACC_GPU_MODE=mode,
        HOROACC_SIMULATED_HOSTS=hosts,
        HOROACC_NCCL_LIBRARY=str(fake_gpu.nccl()),
        HOROACC_FUSION_THRESHOLD="65536",
        HOROACC_GPU_CHUNK_BYTES="16384",
        FAKE_CUDA_MPS="1",
        # The leader of mode L, or the last rank.
        HOROACC_FAULT=f"advance:{0 if mode == 'leader' else ranks - 1}:{turn}:kill",
    )
    script = Path(__file__).with_name("killed_rank.py")
    with Holdups() as holdups:
        job = subprocess.run(
            [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "-np", str(ranks),
             sys.executable, str(script), op],
            env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert job.returncode == 128 + 9, job.stdout + job.stderr
    told = re.findall(r"released by PeerLost: .*; waiting streams: (\d+)", job.stdout)
    assert told == ["0"] * (ranks - 1), job.stdout + job.stderr
    # From the call in which it was, of which the others' part may have begun before.
    times = [float(took) for took in re.findall(r"released after ([\d.]+) s", job.stdout)]
    assert len(times) == ranks - 1 and max(times) < holdups.allow(RELEASE_SECONDS), job.stdout
