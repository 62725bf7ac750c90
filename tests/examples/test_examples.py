"""The main job: real digits, on one rank and on two."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HOROACCRUN = "import sys; from horoacc.launcher.main import main; sys.exit(main())"


def run(
    ranks: int, script: str, *flags: str, how: tuple[str, ...] = ("--tcp",), seconds: float = 110
) -> subprocess.CompletedProcess[str]:
    foreign = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "HOROACC_")
    variables = {
        name: value for name, value in os.environ.items()
        if not name.startswith(foreign) or name == "HOROACC_CACHE_DIR"
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", HOROACCRUN, "-np", str(ranks), *how,
         sys.executable, str(EXAMPLES / script), *flags],
        env=variables, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def accuracy(done: subprocess.CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stderr
    found = re.search(r"accuracy ([\d.]+) %", done.stdout)
    assert found, done.stdout
    return float(found.group(1))


def test_two_ranks_reach_what_one_reaches() -> None:
    together, alone = (accuracy(run(ranks, "torch_digits.py")) for ranks in (2, 1))
    assert together >= 97.0
    # Sums of another order may turn one of the 360 held-out digits.
    assert abs(together - alone) <= 100 / 360 + 0.01


@pytest.mark.timeout(300)  # 16 imports of torch on few cores
def test_sixteen_ranks_as_a_user_starts_them() -> None:
    done = run(16, "torch_digits.py", "--epochs", "1", how=(), seconds=280)
    accuracy(done)
    assert "16 ranks" in done.stdout


def test_bar_is_shown_by_rank_0_only() -> None:
    done = run(2, "torch_digits.py", "--epochs", "1", how=())
    accuracy(done)
    bars = [line for line in re.split(r"[\r\n]", done.stdout + done.stderr) if "epochs" in line]
    assert bars
    assert not [line for line in bars if line.startswith("[1")]


def test_ranks_that_do_not_communicate_are_found_out() -> None:
    done = run(2, "torch_digits.py", "--epochs", "1", "--no-communication")
    assert done.returncode == 1
    assert "did not train the same model" in done.stderr


@pytest.mark.parametrize("flags", [[], ["--model", "cnn", "--compression", "bf16"]])
def test_benchmark(flags: list[str]) -> None:
    done = run(
        2, "torch_benchmark.py", "--width", "32", "--depth", "2", "--steps", "3", "--warmup", "1",
        "--json", *flags,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert found["ranks"] == 2
    assert found["samples_per_second"] > 0
    assert 0 <= found["share_of_time_in_communication"] <= 1
    assert found["share_reduced_in_place"] > 0.5
