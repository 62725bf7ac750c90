"""A job where /dev/shm is as small as in a container trains to the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import training
from paths import MPIRUNS
from pool import FOREIGN, KEPT, Pools

TRAINING = Path(training.__file__)
HOROACCRUN = "import sys; from horoacc.launcher.main import main; sys.exit(main())"
SMALL = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
# A mount namespace of one's own, for the superuser, and for others where the kernel allows it.
UNSHARES = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


def in_small_shm(
    unshare: list[str], command: list[str], arena: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a mount namespace of its own."""
    variables = {n: v for n, v in os.environ.items() if not n.startswith(FOREIGN) or n in KEPT}
    return subprocess.run(
        [*unshare, "sh", "-c", SMALL, "sh", *command],
        env=variables | {"OMP_NUM_THREADS": "1", "HOROACC_ARENA": arena}, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip


def own_mounts() -> list[str]:
    """The command that makes a namespace, which this user may need help to make."""
    for unshare in UNSHARES if shutil.which("unshare") else ():
        if in_small_shm(unshare, ["true"], "off").returncode == 0:
            return unshare
    pytest.skip("this user may not mount in a namespace of its own")


@pytest.mark.parametrize("arena", ["off", "gradients", "all"])
@pytest.mark.parametrize("flags", [["--tcp"], ["--mpirun", str(MPIRUNS["openmpi"])]],
                         ids=["tcp", "openmpi"])  # fmt: skip
def test_same_bits_where_shm_is_small(pools: Pools, flags: list[str], arena: str) -> None:
    unshare = own_mounts()
    wanted = pools.get(2, "horoacc.torch", {"HOROACC_ARENA": "off"}).run(
        TRAINING, "large_job", {}, 120
    )
    command = [sys.executable, "-c", HOROACCRUN, "-np", "2", *flags, sys.executable, str(TRAINING)]
    done = in_small_shm(unshare, command, arena)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "result" in line]
    _, bits, in_place = line[line.index("result") :].split()
    assert bits == wanted[0][0]
    assert (int(in_place) > 64 << 20) == (arena != "off")
