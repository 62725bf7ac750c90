"""The forms of init(): a communicator, some of the ranks, process sets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_jobs import MODES, ROOT, Job

PROGRAM = """
from mpi4py import MPI
import numpy as np
import horoacc as hvd
from horoacc import basics

world = MPI.COMM_WORLD
me, size = world.rank, world.size
assert size == 4

def members(expected, rank, process_set=hvd.global_process_set):
    # Each bit is one rank of the world, so that the sum tells who took part.
    total = hvd.allreduce(np.array([1 << me]), op=hvd.Sum, process_set=process_set)
    assert total[0] == sum(1 << other for other in expected), total
    if process_set is hvd.global_process_set:
        assert (hvd.rank(), hvd.size()) == (rank, len(expected))
        assert (hvd.local_rank(), hvd.local_size()) == (rank, len(expected))
    else:
        assert process_set.rank() == rank

def job(comm, expected, rank, bootstrap):
    hvd.init(comm)
    members(expected, rank)
    assert basics.bootstrap() == bootstrap, basics.bootstrap()
    assert hvd.mpi_enabled() == (bootstrap == "mpi")
    assert hvd.mpi_built() and not hvd.ccl_built() and not hvd.ddl_built()
    hvd.barrier()
    hvd.shutdown()

everybody = [0, 1, 2, 3]
job(None, everybody, me, "mpi")
job([3, 1, 0, 2], everybody, me, "mpi")
job(world, everybody, me, "tcp")

# Two jobs side by side, whose ranks are not those of the world.
halves = [0, 2] if me in (0, 2) else [1, 3]
job(halves, halves, halves.index(me), "tcp")
reverse = world.Split(color=me % 2, key=-me)
job(reverse, halves, 1 - halves.index(me), "tcp")
job([me], [me], 0, "none")
job(MPI.COMM_SELF, [me], 0, "none")

# Process sets of lists and of communicators, given to init() and added later.
pair = hvd.ProcessSet([1, 0])
hvd.init(process_sets=[pair, [2, 3]])
assert pair.ranks == [0, 1] and pair.included() == (me < 2)
if me < 2:
    members([0, 1], me, pair)
hvd.init(process_sets=[[1, 2]])
from horoacc.process_sets import ids_and_ranks
assert sorted(ids_and_ranks().values()) == [[0, 1], everybody, [1, 2], [2, 3]]
odd = hvd.ProcessSet(reverse)
assert odd.mpi_comm is reverse and odd.ranks == halves and odd.size() is None
sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
sets[me % 2] = odd
for one in sets:
    hvd.add_process_set(one)
members(halves, halves.index(me), odd)
for wrong in ([[0, 1]], "static", [[0, 9]], [[]]):
    try:
        hvd.init(process_sets=wrong)
    except ValueError:
        continue
    raise AssertionError(f"init() took {wrong!r}")
hvd.init(process_sets="dynamic")
hvd.barrier()
hvd.shutdown()
assert pair.size() is None and pair.process_set_id is None
print("done")
"""


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_every_form_of_init(job: Job, flavour: str) -> None:
    flags = MODES[flavour]
    if not Path(flags[1]).exists():
        pytest.skip(f"{flavour}'s mpirun is not installed")
    # mpi4py's wheel takes the MPI beside it unless it is told another.
    folder = str(ROOT / ".mpich" / "lib")
    other = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": folder} if flavour == "mpich" else {}
    result = job.run(*flags, "-np", "4", sys.executable, "-c", PROGRAM, **other)
    assert [result.of(rank) for rank in range(4)] == [["done"]] * 4, result


PARTS = """
import sys
import horoacc as hvd
from horoacc.errors import ConfigError
try:
    hvd.init(comm=[0, 1])
except ConfigError as error:
    print(error)
hvd.init(comm=[0, 1, 2])
hvd.barrier()
print(hvd.size())
"""


def test_some_of_the_ranks_need_mpi(job: Job) -> None:
    result = job.run("--tcp", "-np", "3", sys.executable, "-c", PARTS)
    for rank in range(3):
        told, size = result.of(rank)
        assert ("needs MPI" if rank < 2 else "this process has rank 2") in told
        assert size == "3"
