"""A job where /dev/shm is as small as in a container trains to the same bits."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import training
from fork_server_process import ForkServer
from paths import over_mpi
from pool import Pools, RankPool

HERE = Path(__file__)
TRAINING = Path(training.__file__)
SHM_BYTES = 64 << 20
SMALL = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$@"'
# A mount namespace of one's own, for the superuser, and for others where the kernel allows it.
UNSHARES = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


def in_small_shm() -> list[str]:
    """A command that runs another one where /dev/shm is small."""
    for unshare in UNSHARES if shutil.which("unshare") else ():
        command = [*unshare, "sh", "-c", SMALL, "sh"]
        if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            continue
        return command
    pytest.skip("this user may not mount in a namespace of its own")


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """Its ranks, and what MPI does in them, have the small /dev/shm."""
    process = ForkServer("horoacc.torch", in_small_shm())
    yield process
    process.close()


@functools.cache
def wanted_bits(pools: Pools, ranks: int) -> str:
    """What the job gives where there is room."""
    pool = pools.get(ranks, "horoacc.torch", {"HOROACC_ARENA": "off"})
    return str(pool.run(TRAINING, "large_job", {}, 120)[0][0])


def bytes_of_shm() -> int:
    found = os.statvfs("/dev/shm")
    return found.f_blocks * found.f_frsize


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("arena", "ranks"), [("off", 2), ("gradients", 2), ("all", 2), ("all", 8)])
@pytest.mark.parametrize("env", [pytest.param({}, id="tcp"), over_mpi("openmpi", "over", {})])
def test_same_bits_where_shm_is_small(
    pools: Pools, fork_server: ForkServer, env: dict[str, str], arena: str, ranks: int
) -> None:
    wanted = wanted_bits(pools, ranks)
    pool = RankPool(ranks, "horoacc.torch", env | {"HOROACC_ARENA": arena}, fork_server)
    try:
        assert pool.run(HERE, "bytes_of_shm", {}, 30) == [SHM_BYTES] * ranks
        results = pool.run(TRAINING, "large_job", {}, 120)
    finally:
        pool.stop()
    for bits, in_place in results:
        assert bits == wanted
        assert (in_place > SHM_BYTES) == (arena != "off")
