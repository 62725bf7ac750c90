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
    # Each bit is one rank of the world, so that the sum names the members.
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
from horoacc.process_sets import ids_and_ranks, registered
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

# Every rank passes the half that it is in itself: both become sets.
for one in sets:
    hvd.remove_process_set(one)
own = hvd.add_process_set(world.Split(color=me % 2, key=me))
assert own.ranks == halves
assert sorted(ids_and_ranks().values()) == [[0, 1], everybody, [0, 2], [1, 2], [1, 3], [2, 3]]
members(halves, halves.index(me), own)
assert hvd.remove_process_set(own) and own.size() is None
assert sorted(ids_and_ranks().values()) == [[0, 1], everybody, [1, 2], [2, 3]]
uneven = hvd.add_process_set(world.Split(color=min(me, 1), key=me))
members([0] if me == 0 else [1, 2, 3], max(0, me - 1), uneven)
hvd.shutdown()
hvd.init()
# Communicators that overlap, and one rank that names ranks instead, are errors on all ranks.
low = world.Create_group(world.Get_group().Incl([0, 1])) if me < 2 else MPI.COMM_SELF
high = world.Create_group(world.Get_group().Incl([1, 2, 3])) if me > 0 else low
pairs = world.Split(color=me // 2, key=me)
for wrong in (high if me != 1 else low, pairs if me else [0, 3]):
    try:
        hvd.add_process_set(wrong)
    except ValueError as error:
        assert "differ" in str(error), error
    else:
        raise AssertionError("sets that differ were taken")
hvd.barrier()
hvd.shutdown()
hvd.init(world, process_sets=[hvd.ProcessSet(world.Split(color=me % 2, key=me))])
assert [one.ranks for one in map(registered, range(1, 3))] == [[0, 2], [1, 3]]
members(halves, halves.index(me), registered(1 + me % 2))
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


APART = """
import os, sys
import horoacc as hvd
from horoacc.errors import ConfigError
me = int(os.environ["OMPI_COMM_WORLD_RANK"])
try:
    hvd.init(comm=[1] if sys.argv[1] == "alone" and me == 1 else [0, 2])
except ConfigError as error:
    print(error)
else:
    print(hvd.size())
"""


@pytest.mark.parametrize(("how", "told"), [("alone", "1"), ("refused", "init() got the ranks")])
def test_nobody_waits_for_a_rank_that_needs_no_mpi(job: Job, how: str, told: str) -> None:
    """MPI begins when all ranks do, also those that the job of the others is nothing to."""
    flags = MODES["openmpi"]
    result = job.run(*flags, "-np", "3", sys.executable, "-c", APART, how)
    assert [result.of(rank)[0][: len(told)] for rank in range(3)] == ["2", told, "2"]


def test_some_of_the_ranks_need_mpi(job: Job) -> None:
    result = job.run("--tcp", "-np", "3", sys.executable, "-c", PARTS)
    for rank in range(3):
        told, size = result.of(rank)
        assert ("needs MPI" if rank < 2 else "this process has rank 2") in told
        assert size == "3"


def test_sixteen_ranks(job: Job, mode: list[str]) -> None:
    program = """
import numpy as np
import horoacc as hvd
hvd.init()
total = hvd.allreduce(np.full(5, 1 << hvd.rank()), op=hvd.Sum)
print(hvd.size(), set(total.tolist()))
"""
    result = job.run(*mode, "-np", "16", sys.executable, "-c", program)
    for rank in range(16):
        assert result.of(rank) == [f"16 {{{(1 << 16) - 1}}}"]


def test_ranks_whose_standard_error_is_closed(job: Job) -> None:
    """A stall's warning must not be written into a file or socket of the engine."""
    program = """
import os, time
import numpy as np
import horoacc as hvd
hvd.init()
if hvd.rank() == 1:
    time.sleep(1.5)
mean = hvd.allreduce(np.ones(3), name="late")
print(os.readlink("/proc/self/fd/2"), mean.tolist())
"""
    closed = ("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program)
    result = job.run("--tcp", "--stall-check-warning-time-seconds", "0.2", "-np", "2", *closed)
    for rank in range(2):
        assert result.of(rank) == ["/dev/null [1.0, 1.0, 1.0]"]


def test_limits_that_no_clock_reaches(job: Job) -> None:
    program = """
import numpy as np
import horoacc as hvd
hvd.init()
print(hvd.allreduce(np.ones(1), op=hvd.Sum).tolist())
"""
    limits = ("--start-timeout", "1e10", "--stall-check-warning-time-seconds", "1e10",
              "--stall-check-shutdown-time-seconds", "1e11")  # fmt: skip
    result = job.run("--tcp", *limits, "-np", "2", sys.executable, "-c", program)
    assert result.of(0) == result.of(1) == ["[2.0]"]
    assert "late" not in result.err and "within" not in result.err


AGAIN = """
import sys
import numpy as np
import horoacc as hvd
from horoacc.process_sets import ids_and_ranks

size = int(sys.argv[1])
everybody = list(range(size))
first = hvd.ProcessSet([0])
for wrong in (
    [first, [0]], [[0, 1], [1, 0]], [[0], everybody], [[0], []], [[0], [0, size]], [[0], [1, 1]],
    "all",
):
    try:
        hvd.init(process_sets=wrong)
    except ValueError:
        assert not hvd.is_initialized() and first.process_set_id is None, wrong
        continue
    raise AssertionError(f"init() took {wrong!r}")
pair = hvd.ProcessSet([1, 0])
hvd.init(process_sets=[first, pair])
for wrong in ([[size - 1], [0, 1]], [[size - 1], [0]]):
    try:
        hvd.init(process_sets=wrong)
    except ValueError:
        assert list(ids_and_ranks().values()) == [everybody, [0], [0, 1]] or size == 2
        assert first.process_set_id is not None
if pair.included():
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, process_set=pair)[0] == 2
assert hvd.allreduce(np.ones(2), op=hvd.Sum)[0] == size
print("again")
"""


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("way", ["tcp", "openmpi"])
def test_an_init_that_fails_leaves_nothing_behind(job: Job, way: str, ranks: int) -> None:
    result = job.run(*MODES[way], "-np", str(ranks), sys.executable, "-c", AGAIN, str(ranks))
    for rank in range(ranks):
        assert result.of(rank) == ["again"], result.err
    job.expect_nothing_left()
