"""`horoaccrun tune -- --gpus`, and `HOROACC_GPU_MODE=auto` that chooses by the measured times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_gpu


def test_modes_are_measured_and_chosen_by_size(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    env = dict(
        os.environ,
        HOROACC_CUDA_PLUGIN=str(fake_gpu.plugin()),
        HOROACC_NCCL_LIBRARY=str(fake_gpu.nccl()),
    )
    script = Path(__file__).with_name("tuned_modes.py")
    job = subprocess.run(
        [sys.executable, "-m", "horoacc.launcher.main", "--tcp", "-np", "2", sys.executable,
         str(script), str(file)],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("all as measured") == 2
    assert "not measured: kernel: " in job.stdout, "two ranks on one GPU, without MPS"
    rows = json.loads(file.read_text())["rows"]
    assert [(name, hosts, size) for name, hosts, size, _ in rows] == [
        (f"gpu_{mode}", [2], size) for mode in ("leader", "stream", "nccl") for size in (1024, 8192)
    ]
    assert all(0 < seconds < 60 for *_, seconds in rows)
