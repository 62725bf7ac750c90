"""A job where /dev/shm is as small as in a container trains to the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import training
from pool import FOREIGN, KEPT, Pools

TRAINING = Path(training.__file__)
HOROACCRUN = "import sys; from horoacc.launcher.main import main; sys.exit(main())"
SMALL = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


def in_small_shm(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in a mount namespace of its own."""
    variables = {n: v for n, v in os.environ.items() if not n.startswith(FOREIGN) or n in KEPT}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", SMALL, "sh", *command],
        env=variables | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


def test_same_bits_where_shm_is_small(pools: Pools) -> None:
    if shutil.which("unshare") is None or in_small_shm(["true"]).returncode != 0:
        pytest.skip("this user may not mount in a namespace of its own")
    wanted = pools.get(2, "horoacc.torch", {"HOROACC_ARENA": "off"}).run(
        TRAINING, "large_job", {}, 120
    )
    done = in_small_shm(
        [sys.executable, "-c", HOROACCRUN, "-np", "2", "--tcp", sys.executable, str(TRAINING)]
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "result" in line]
    _, bits, in_place = line[line.index("result") :].split()
    assert bits == wanted[0][0]
    assert int(in_place) > 64 << 20
