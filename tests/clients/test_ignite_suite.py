"""PyTorch Ignite's own distributed tests, as its source distribution has them, on HoroACC.

Those that ask for GPUs, TPUs or several nodes skip themselves; the counts say how many must not.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from client_jobs import BIN, PYTHON, run

import horoacc.dropin

pytestmark = pytest.mark.timeout(1600)
# Its native fixtures meet over one file of fixed name in /tmp: never two of these side by side.
alone = pytest.mark.xdist_group("ignite")
SOURCES = next(BIN.parent.glob("pytorch_ignite-*/"))
HERE = Path(__file__).parent
STARTUP = Path(horoacc.dropin.__file__).parent / "startup"
NATIVE = "not hvd and not horovod and not nccl"
PYTEST = [
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "distributed"),
    "tests/ignite/distributed",
]


def passed(command: list[str], cwd: Path = SOURCES, **more: str) -> int:
    done = run(command, cwd=cwd, seconds=1500, **more)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found, done.stdout[-6000:]
    return int(found.group(1))


@alone
def test_native_on_two_ranks(tmp_path: Path) -> None:
    """Each of two processes runs all tests, and they meet in each.

    Some act as if Slurm had started them. Its scontrol, if it is here, wants a cluster's file.
    """
    Path("/tmp/free_port").unlink(missing_ok=True)  # of a run that was interrupted
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    more = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "WORLD_SIZE": "2"}
    both = ["--dist=each", "--tx", "2*popen//python=python", "-p", "on_horoacc"]
    path = f"{HERE}"
    assert passed([*PYTHON, *PYTEST, "-k", NATIVE, *both], PYTHONPATH=path, **more) >= 54


@alone
def test_native_that_starts_processes() -> None:
    """By fork and by spawn. The parent has made no group before: HoroACC's children of such a one
    get an error, see docs/clients.md."""
    command = [*PYTHON, "-m", "horoacc.auto", *PYTEST, "-k", "spawn_gloo and not multinode"]
    assert passed(command) >= 6


def test_horovod(tmp_path: Path) -> None:
    """As if Horovod was installed: the tests give their processes a PYTHONPATH of their own."""
    copy = tmp_path / "sources"
    shutil.copytree(SOURCES, copy)
    (copy / "sitecustomize.py").symlink_to(STARTUP / "sitecustomize.py")
    command = [*PYTHON, *PYTEST, "-k", "hvd or horovod"]
    assert passed(command, copy, PYTHONPATH=str(copy)) >= 12
