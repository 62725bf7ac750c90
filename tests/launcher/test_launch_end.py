"""How jobs end: exit codes, messages about a failure, and that no process outlives them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher_jobs import ASLEEP, END_SECONDS, MODES, RANK, Job
from launcher_traces import traces


def when(rank: int, then: str, otherwise: str = f"sleep {ASLEEP}") -> list[str]:
    """A program in which one rank does something else than the others."""
    return ["sh", "-c", f"if [ {RANK} = {rank} ]; then {then}; else {otherwise}; fi"]


def ranks_up(job: Job, count: int, word: str) -> list[int]:
    """The processes whose command line holds a word, once there are as many as expected."""

    def found() -> list[int]:
        return [pid for pid, line in job.alive() if line.startswith(word)]

    job.wait_until(lambda: len(found()) >= count, f"the start of {count} x {word}")
    return found()


def test_exit_code_is_the_first_failing_ranks(job: Job, any_mode: list[str]) -> None:
    result = job.run(*any_mode, "-np", "3", *when(1, "echo why >&2; exit 7"), code=7)
    said = "horoaccrun: rank 1 exited with code 7; its last lines on stderr:\n[1] why\n"
    assert result.err.endswith(said)
    job.expect_nothing_left()


def test_death_by_a_signal(job: Job, any_mode: list[str]) -> None:
    result = job.run(*any_mode, "-np", "3", *when(2, "kill -SEGV $$"), code=128 + 11)
    assert "rank 2 was killed by SIGSEGV; it had printed nothing on stderr" in result.err
    job.expect_nothing_left()


def test_a_rank_killed_from_outside(job: Job, mode: list[str]) -> None:
    process = job.start(*mode, "-np", "3", "sleep", str(ASLEEP))
    os.kill(ranks_up(job, 3, "sleep")[1], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + 9
    assert b"was killed by SIGKILL, which the kernel sends when memory runs out" in err
    job.expect_nothing_left()


def test_last_lines_are_repeated_only_twenty(job: Job) -> None:
    program = when(0, "for i in $(seq 30); do echo line $i >&2; done; exit 3")
    result = job.run("--tcp", "-np", "2", *program, code=3)
    lines = [f"[0] line {i}" for i in range(1, 31)]
    told = "horoaccrun: rank 0 exited with code 3; its last lines on stderr:"
    at_once = "horoaccrun: rank 0 exited with code 3; the other ranks have 2 s to end by themselves"
    printed = result.err.splitlines()
    printed.remove(at_once)
    assert printed == [*lines, told, *lines[10:]]


def test_others_may_clean_up_when_one_fails(job: Job, mode: list[str], tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    fail = f"while [ ! -e {ready} ]; do sleep 0.05; done; exit 4"
    clean = f"trap 'echo cleaned; exit' TERM; touch {ready}; sleep {ASLEEP} & wait"
    result = job.run(*mode, "-np", "2", *when(1, fail, clean), code=4)
    assert result.of(0) == ["cleaned"]
    job.expect_nothing_left()


@pytest.mark.parametrize(
    ("way", "number", "code"),
    [
        ("tcp", signal.SIGINT, 130),
        ("tcp", signal.SIGHUP, 129),
        ("openmpi", signal.SIGINT, 130),
        ("openmpi", signal.SIGTERM, 143),
        ("mpich", signal.SIGTERM, 143),
    ],
)
def test_signals_end_the_job(job: Job, way: str, number: int, code: int) -> None:
    process = job.start(*MODES[way], "-np", "3", "sleep", str(ASLEEP))
    ranks_up(job, 3, "sleep")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == code
    job.expect_nothing_left()


def test_ctrl_c_reaches_python_as_an_exception(job: Job, mode: list[str]) -> None:
    program = """
import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = job.start(*mode, "-np", "2", sys.executable, "-c", program)
    assert process.stdout
    first = process.stdout.readline() + process.stdout.readline()
    assert first.count(b"ready") == 2
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == [b"[0] interrupted", b"[1] interrupted"]
    assert process.returncode == 130


def test_stubborn_ranks_are_killed_after_the_grace(job: Job, mode: list[str]) -> None:
    stubborn = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]\n"
    stubborn += "print('deaf', flush=True)\nwhile True: time.sleep(1)"
    flags = [*mode, "--grace-seconds", "0.3", "-np", "2", sys.executable, "-c", stubborn]
    process = job.start(*flags)
    assert process.stdout
    for _ in range(2):
        assert b"deaf" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    job.expect_nothing_left()


def test_second_ctrl_c_does_not_wait(job: Job) -> None:
    stubborn = "trap 'echo heard' INT; echo deaf; while true; do sleep 1; done"
    flags = ["--tcp", "--grace-seconds", "1000", "-np", "1", "sh", "-c", stubborn]
    process = job.start(*flags)
    assert process.stdout and b"deaf" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert b"heard" in process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    job.expect_nothing_left()


def test_a_stopped_rank_ends_too(job: Job, mode: list[str]) -> None:
    process = job.start(*mode, "-np", "2", "sleep", str(ASLEEP))
    os.kill(ranks_up(job, 2, "sleep")[0], signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    job.expect_nothing_left()


def test_nothing_survives_a_killed_launcher(job: Job, mode: list[str]) -> None:
    """Neither the ranks nor their children, not even mpirun."""
    process = job.start(*mode, "-np", "2", "sh", "-c", f"sleep {ASLEEP} & sleep {ASLEEP}; true")
    ranks_up(job, 4, "sleep")
    process.kill()
    process.communicate(timeout=30)
    job.expect_nothing_left()


def test_nothing_survives_a_killed_mpirun(job: Job) -> None:
    process = job.start("--mpi", "-np", "2", "sh", "-c", f"sleep {ASLEEP} & sleep {ASLEEP}; true")
    ranks_up(job, 4, "sleep")
    (engine,) = [pid for pid, line in job.alive() if "--map-by" in line]
    os.kill(engine, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode != 0
    job.expect_nothing_left()


@pytest.mark.parametrize("code", [0, 1])
def test_nothing_survives_its_rank(job: Job, code: int) -> None:
    """Children in the rank's group, and one that left it, in a rank that ends by itself."""
    program = f"sleep {ASLEEP} & setsid sleep {ASLEEP} & sleep 0.2; exit {code}"
    flags = MODES["tcp" if code == 0 else "openmpi"]
    result = job.run(*flags, "-np", "1", "sh", "-c", program, code=code)
    assert result.out == ""
    job.expect_nothing_left()


def test_success_waits_for_all(job: Job, mode: list[str]) -> None:
    result = job.run(*mode, "-np", "2", *when(0, "exit 0", "sleep 0.5; echo late"))
    assert result.of(1) == ["late"]


def test_mpiruns_own_failure_is_shown(job: Job) -> None:
    result = job.run("--mpi", "--mpi-args=--no-such-flag", "-np", "1", "true", code=None)
    assert result.code != 0
    assert "no-such-flag" in result.err and "ended with code" in result.err


MPI_PROGRAM = """
from mpi4py import MPI
import os, signal, sys, time
world = MPI.COMM_WORLD
world.allreduce(1)
print("up", flush=True)
while world.rank == 1 and sys.argv[1] != "-":
    if os.path.exists(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["kill a rank", "interrupt", "kill the launcher"])
def test_no_file_is_left(job: Job, tmp_path: Path, how: str) -> None:
    """MPI itself has shared memory and session files, which it leaves where it is killed."""
    go = tmp_path / "go"
    folder = tmp_path / "sessions"
    folder.mkdir()
    argument = str(go) if how == "kill a rank" else "-"
    program = [sys.executable, "-c", MPI_PROGRAM, argument]
    process = job.start("--mpi", "-np", "2", *program, TMPDIR=str(folder))
    assert process.stdout
    for _ in range(2):
        assert process.stdout.readline().endswith(b"up\n")
    found = traces(job)
    assert found.files and list(folder.iterdir())
    if how == "kill a rank":
        go.touch()
    elif how == "interrupt":
        process.send_signal(signal.SIGINT)
    else:
        process.kill()
    process.communicate(timeout=30)
    job.expect_nothing_left()
    job.wait_until(lambda: not list(folder.iterdir()), "the removal of session files", END_SECONDS)
    found.expect_gone(job)


MPICH_PROGRAM = """
from mpi4py import MPI
import os, re, signal, sys, time
world = MPI.COMM_WORLD
world.allreduce(1)
if world.rank == 0:
    print(re.search(r"/dev/shm/mpich_shm_\\S+", open("/proc/self/maps").read())[0], flush=True)
if sys.argv[1] != "end":
    while world.rank == 0 or not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["end", "kill a rank", "interrupt", "kill the launcher"])
def test_no_segment_of_mpich_is_left(job: Job, tmp_path: Path, how: str) -> None:
    """MPICH has a file in /dev/shm, of a name that says nothing, until MPI_Finalize."""
    mpirun = Path(MODES["mpich"][1])
    if not mpirun.exists():
        pytest.skip("MPICH is not installed")
    go = tmp_path / "go"
    program = [sys.executable, "-c", MPICH_PROGRAM, "end" if how == "end" else str(go)]
    process = job.start(
        *MODES["mpich"], "-np", "2", *program,
        MPI4PY_MPIABI="mpich", LD_LIBRARY_PATH=str(mpirun.parents[1] / "lib"),
    )  # fmt: skip
    assert process.stdout
    segment = Path(process.stdout.readline().split()[-1].decode())
    assert segment.name.startswith("mpich_shm_")
    if how.startswith("kill"):
        assert segment.exists()
        time.sleep(2)  # many of the looks that are taken for such files, on a busy machine too
    if how == "kill a rank":
        go.touch()
    elif how == "interrupt":
        process.send_signal(signal.SIGINT)
    elif how == "kill the launcher":
        process.kill()
    process.communicate(timeout=30)
    job.expect_nothing_left()
    job.wait_until(lambda: not segment.exists(), "the removal of MPICH's segment", END_SECONDS)
