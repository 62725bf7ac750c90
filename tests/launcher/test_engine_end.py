"""How jobs with an engine end: the survivors' errors, and that nothing stays behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_jobs import END_SECONDS, MODES, Job, Result
from launcher_traces import traces

HOSTS = {"HOROACC_SIMULATED_HOSTS": "each"}
HOSTS_OVER_MPI = HOSTS | {"HOROACC_CONTROL": "mpi"}
# The rendezvous, and the variables that say what joins the ranks.
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "shm": (MODES["tcp"], {}),
    "tcp": (MODES["tcp"], HOSTS),
    "openmpi": (MODES["openmpi"], {}),
    "openmpi-mpi": (MODES["openmpi"], HOSTS_OVER_MPI),
    "mpich": (MODES["mpich"], {}),
    "mpich-mpi": (MODES["mpich"], HOSTS_OVER_MPI),
}
# Over MPI only mpirun notices the death of a rank on another host, and it is told last.
NOBODY_TOLD = ("openmpi-mpi", "mpich-mpi")

# The survivors hold back SIGTERM until they have printed their error, and end some time after that,
# so that the rank that is at fault ends first.
PROGRAM = """
import ctypes, os, signal, sys
if sys.argv[1] != "go on":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
import numpy as np
import horoacc as hvd
how = sys.argv[1]
hvd.init()
me = hvd.rank()
arrays = [np.ones(1 << 18, np.float32) for _ in range(4)]
for array in arrays:
    hvd.allreduce_(array)
print("up", flush=True)
if me == 0:
    sys.stdin.readline()
hvd.barrier()
try:
    for step in range(10**9):
        flights = [hvd.allreduce_async_(x, name=f"grad{i}") for i, x in enumerate(arrays)]
        if me == 1 and step == 5:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "crash":
                ctypes.string_at(0)
            elif how == "interrupt":
                signal.raise_signal(signal.SIGINT)
            elif how == "raise":
                raise ValueError("only on rank 1")
        for flight in flights:
            hvd.synchronize(flight)
        if me == 0 and step == 5:
            print("running", flush=True)
except hvd.HorovodInternalError as error:
    print(type(error).__name__, error.culprit, error, flush=True)
    signal.sigtimedwait([signal.SIGTERM], 1)
    sys.exit(9)
"""


class EngineJob:
    """Ranks that reduce until something happens to rank 1."""

    def __init__(self, job: Job, folder: Path, way: str, how: str, ranks: int = 3) -> None:
        flags, variables = WAYS[way]
        if len(flags) == 2 and not Path(flags[1]).exists():
            pytest.skip(f"{way}'s mpirun is not installed")
        self._job = job
        self._folder = folder
        self.process = job.start(
            *flags, "-np", str(ranks), sys.executable, "-c", PROGRAM, how,
            stdin=subprocess.PIPE, TMPDIR=str(folder), **variables,
            HOROACC_GRACE_SECONDS="2" if way in NOBODY_TOLD else "30",
        )  # fmt: skip
        assert self.process.stdout and self.process.stdin
        for _ in range(ranks):
            assert self.process.stdout.readline().endswith(b"up\n"), self.process.communicate()
        self._traces = traces(job)
        # The traces must be there as long as the job lives.
        assert bool(self._traces.files) == (flags != MODES["tcp"])
        assert flags == MODES["tcp"] or any("horoaccrun" in name for name in self._traces.sockets)
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> Result:
        out, err = self.process.communicate(timeout=300)
        return Result(self.process.returncode, out.decode(), err.decode())

    def expect_nothing_left(self) -> None:
        self._job.expect_nothing_left()
        self._job.wait_until(
            lambda: not list(self._folder.iterdir()), "an empty TMPDIR", END_SECONDS
        )
        self._traces.expect_gone(self._job)


CODES = {
    "kill": 128 + signal.SIGKILL,
    "crash": 128 + signal.SIGSEGV,
    "interrupt": 128 + signal.SIGINT,
    "raise": 1,
}


# The last acts of a rank depend on how it ends, and the errors of the others on the
# way: each end once with each launcher, and one with every way.
@pytest.mark.parametrize(
    ("how", "way"),
    [
        *(("kill", way) for way in WAYS if way != "shm"),
        *(("crash", way) for way in ("tcp", "openmpi", "mpich-mpi")),
        *(("interrupt", way) for way in ("shm", "openmpi-mpi", "mpich")),
        *(("raise", way) for way in ("shm", "openmpi", "mpich-mpi")),
    ],
)
def test_a_rank_ends_in_the_middle(job: Job, tmp_path: Path, way: str, how: str) -> None:
    ranks = EngineJob(job, tmp_path, way, how)
    result = ranks.end()
    assert result.code == CODES[how], result
    for survivor in () if way in NOBODY_TOLD else (0, 2):
        (line,) = [line for line in result.of(survivor) if "PeerLost" in line]
        assert re.fullmatch(r"PeerLost 1 .*\brank 1\b.*", line), line
    if how == "raise":
        assert "rank 1 exited with code 1" in result.err
        assert "[1] ValueError: only on rank 1" in result.err
    ranks.expect_nothing_left()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_rank_dies(job: Job, tmp_path: Path, ranks: int) -> None:
    result = EngineJob(job, tmp_path, "shm", "kill", ranks).end()
    assert result.code == CODES["kill"], result
    for survivor in set(range(ranks)) - {1}:
        (line,) = [line for line in result.of(survivor) if "PeerLost" in line]
        assert re.fullmatch(r"PeerLost 1 .*\brank 1\b.*", line), line


RANK_1_RAISES = """
import atexit, time
atexit.register(time.sleep, 1)  # runs after the engine's own
import numpy as np
import horoacc as hvd
hvd.init()
hvd.barrier()
if hvd.rank() == 1:
    raise ValueError("only on rank 1")
if hvd.rank() == 0:
    atexit.unregister(time.sleep)
try:
    hvd.allreduce(np.ones(3))
except hvd.HorovodInternalError as error:
    print(type(error).__name__, error.culprit, flush=True)
    raise SystemExit(9)
"""


@pytest.mark.parametrize("way", WAYS)
def test_the_rank_that_raised_is_the_one_that_failed(job: Job, way: str) -> None:
    """However long it takes to end: the others must not end, with another code, before it has."""
    flags, variables = WAYS[way]
    if len(flags) == 2 and not Path(flags[1]).exists():
        pytest.skip(f"{way}'s mpirun is not installed")
    result = job.run(*flags, "-np", "3", sys.executable, "-c", RANK_1_RAISES, code=1, **variables)
    said = result.err.split("horoaccrun: rank 1 exited with code 1; its last lines on stderr:\n")
    assert len(said) == 2, result.err
    assert said[1].rstrip().endswith("[1] ValueError: only on rank 1"), result.err
    job.expect_nothing_left()


@pytest.mark.parametrize(
    ("number", "way"),
    [
        *((signal.SIGINT, way) for way in ("shm", "openmpi-mpi", "mpich")),
        *((signal.SIGKILL, way) for way in ("tcp", "openmpi", "mpich-mpi")),
    ],
)
def test_the_launcher_ends_in_the_middle(job: Job, tmp_path: Path, way: str, number: int) -> None:
    ranks = EngineJob(job, tmp_path, way, "go on")
    assert ranks.process.stdout and b"running" in ranks.process.stdout.readline()
    ranks.process.send_signal(number)
    result = ranks.end()
    assert result.code == (-number if number == signal.SIGKILL else 128 + number), result
    if number == signal.SIGINT:
        # An mpirun ends the others by itself as soon as one has ended.
        told = 3 if way == "shm" else 1
        assert result.err.count("KeyboardInterrupt") >= told
    ranks.expect_nothing_left()


STALL = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
import numpy as np
import horoacc as hvd
from horoacc.errors import Timeout
hvd.init()
hvd.barrier()  # so that the warning does not count the ranks' start
try:
    if hvd.rank() == 1:
        deadline = time.monotonic() + 60
        while not os.path.exists(sys.argv[1]) and time.monotonic() < deadline:
            time.sleep(0.01)
    hvd.allreduce(np.ones(3), name="late")
except Timeout as error:
    open(sys.argv[1], "w").close()
    print(error, flush=True)
    if hvd.rank() != 1:
        signal.sigtimedwait([signal.SIGTERM], 1)
    sys.exit(5)
"""


@pytest.mark.parametrize("way", ["shm", "tcp", "openmpi-mpi", "mpich"])
def test_a_stalled_tensor_is_named_and_ends_the_job(job: Job, tmp_path: Path, way: str) -> None:
    flags, variables = WAYS[way]
    result = job.run(
        *flags, "-np", "3", sys.executable, "-c", STALL, str(tmp_path / "noticed"),
        HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_STALL_SHUTDOWN_TIME_SECONDS="4",
        HOROACC_GRACE_SECONDS="30", code=5, **variables,
    )  # fmt: skip
    # The warning waits a second for the answers of the missing ranks, which over MPI nothing wakes.
    for rank in range(3):
        (told,) = result.of(rank)
        assert "'allreduce.late' was not submitted by rank(s) 1 " in told, told
    lines = [line for line in result.err.splitlines() if " warning: " in line]
    # There may be warnings of earlier calls, if the machine held up a rank for so long.
    (warning,) = [line for line in lines if "'allreduce.late'" in line]
    assert "rank(s) 1 have not submitted" in warning, warning
    job.expect_nothing_left()


FORKS_AFTER = """
import os
import numpy as np
import horoacc as hvd
for _ in range(2):
    hvd.init()
    hvd.shutdown()
if os.fork() == 0:
    hvd.init()
    assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [1, 1, 1]
    hvd.shutdown()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
hvd.init()
"""


def test_a_child_may_begin_a_job_when_its_parents_is_over() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS_AFTER], capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "7\n"), done


ENDS = """
import subprocess, sys, time
from horoacc.launcher.output import Printer
from horoacc.launcher.supervise import Supervisor
supervisor = Supervisor(Printer({}), 3, 1.0)
ended = []
for number, seconds in enumerate((0.6, 0.3, 0.0)):
    child = subprocess.Popen(["sh", "-c", f"sleep {seconds}; exit {number + 1}"])
    supervisor.on_child_end(child.pid, ended.append)
time.sleep(1.5)
supervisor._reap()
supervisor.abandon()
print(ended)
"""


def test_ranks_that_ended_together_are_taken_in_the_order_of_their_ends() -> None:
    shown = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    assert shown.stdout == "[3, 2, 1]\n", shown.stderr
