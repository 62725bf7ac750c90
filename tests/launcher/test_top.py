"""`horoaccrun top` and `horoaccrun explain` of running jobs, on a real terminal: tmux's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdups import Holdups
from launcher_jobs import Job
from terminal import Terminal

LOOKED_AT = str(Path(__file__).with_name("looked_at.py"))
RANKS = 3
SHOWN_SECONDS = 1.0


@pytest.fixture
def looked(tmp_path: Path) -> Iterator[Callable[..., tuple[Path, Path]]]:
    """Starts a job to look at, and ends it; gives the files NOW and MOMENT."""
    with Job() as job:
        running: list[subprocess.Popen[bytes]] = []

        def start(what: str, *flags: str, **variables: str) -> tuple[Path, Path]:
            now, moment = tmp_path / "now", tmp_path / "moment"
            running.append(
                job.start(
                    *(flags or ("--tcp",)), "-np", str(RANKS), sys.executable, LOOKED_AT, what,
                    str(now), str(moment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    **{"HOROACC_LOOK_DIR": str(tmp_path / "look"), "HOROACC_GRACE_SECONDS": "60"}
                    | variables,
                )
            )  # fmt: skip
            return now, moment

        yield start
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)  # without a time of grace
            process.wait(300)
        job.wait_until(lambda: not job.alive(), "the end")


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs horoaccrun without a terminal."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            Job().command(*arguments), capture_output=True, text=True, timeout=300, check=False,
            env=Job().environ(HOROACC_LOOK_DIR=str(tmp_path / "look")) | variables,
        )  # fmt: skip

    return run


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("Debian's package tmux is not here")
    shown = Terminal(tmp_path, Job().environ(HOROACC_LOOK_DIR=str(tmp_path / "look")))
    yield shown
    shown.close()


# What top and explain show of rank 1.
SHOWN = {
    "slow": (
        r"slowest rank: 1: the others wait [2-9]\d% of the time for it",
        r"Straggler: .* the others wait for rank 1.*in <module> \(looked_at\.py:\d+\)",
    ),
    "stalled": (
        r"oldest tensor: 'allreduce\.grad0' and 3 more, [\d.]+ s: ranks 0, 2 wait for rank 1"
        r"(?s:.*)\n *1 +\S+ +late [\d.]+ s, sleeps",
        r"Ranks 0, 2 wait for rank 1 in 'allreduce\.grad0' and 3 more since .*; rank 1 sleeps .* "
        r"in load \(looked_at\.py:\d+\) < <module>",
    ),
    "busy": (
        r"wait for rank 1(?s:.*)\n *1 +\S+ +late [\d.]+ s, computes",
        r"Ranks 0, 2 wait for rank 1 .*; rank 1 computes .* in compute \(looked_at\.py:\d+\)",
    ),
    "dead": (
        r"the job has failed: rank 1 died(?s:.*)rank 1 is gone: its process \d+ has ended",
        r"The job has failed: rank 1 died(?s:.*)Rank 1 is gone: its process \d+ has ended",
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_terminal_shows_which_rank_is_amiss(
    looked: Callable[..., tuple[Path, Path]], terminal: Terminal, what: str
) -> None:
    now, moment = looked(what)
    of_top, of_explain = SHOWN[what]
    Job().wait_until(lambda: len(_doors(now.parent / "look")) == RANKS, "the ranks' start")
    terminal.run("top")
    healthy = terminal.wait_for(r"[\d.]+ steps/s")
    assert re.search(r"RANK +HOST +STATE +STEP/S", healthy), healthy
    assert not re.search(of_top, healthy), healthy
    with Holdups() as holdups:
        now.touch()
        terminal.wait_for(of_top)
        seen = time.monotonic_ns()
    assert (seen - int(moment.read_text())) / 1e9 < holdups.allow(SHOWN_SECONDS)
    # A long line goes on in the next row of the terminal.
    terminal.run("explain")
    said = terminal.wait_for("ENDS").replace("\n", " ")
    assert re.search(of_explain, said), said


def _doors(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    return []


def test_top_ends_by_a_key_and_with_the_job(
    looked: Callable[..., tuple[Path, Path]], terminal: Terminal
) -> None:
    now, _ = looked("idle")
    Job().wait_until(lambda: len(_doors(now.parent / "look")) == RANKS, "the ranks' start")
    terminal.run("top")
    terminal.wait_for(r"steps/s")
    terminal.key("C-c")
    assert "Traceback" not in terminal.wait_for("ENDS")


def test_programs_read_the_same(
    looked: Callable[..., tuple[Path, Path]],
    look: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    none = look("top")
    assert (none.returncode, none.stdout) == (1, "")
    none_here = "no job of this user has ranks, an agent or its launcher on this host"
    assert none.stderr == f"horoaccrun top: {none_here}\n"
    looked("idle")
    Job().wait_until(lambda: len(_doors(tmp_path / "look")) == RANKS, "the ranks' start")
    folder = tmp_path / "look"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    time.sleep(1)  # some steps
    facts = json.loads(look("top", "--json").stdout)
    assert facts["size"] == RANKS and facts["steps_per_second"] > 0 and facts["failure"] == ""
    for rank, row in enumerate(facts["ranks"]):
        assert row["rank"] == rank and row["state"] in ("runs", f"late {row['late_seconds']}")
        parts = [row[name] for name in ("compute", "negotiate", "reduce", "wait")]
        assert all(part >= 0 for part in parts) and sum(parts) == pytest.approx(1, abs=0.05), row
        assert row["paths"].keys() == {"copied"} and row["bytes_per_second"] > 0
    job, pid = facts["job"], facts["ranks"][2]["pid"]
    plain = look("top", "--once", str(pid)).stdout
    assert plain.startswith(f"  job {job}: {RANKS} ranks, 1 host, ") and "\x1b" not in plain
    for command in ("top", "explain"):
        wrong = look(command, "nosuch")
        told = wrong.stderr + wrong.stdout
        assert wrong.returncode == 1, told
        assert told.startswith(
            f"horoaccrun {command}: there is no running job 'nosuch' here, there are:\n  {job}  "
        ), told
        assert len(told.splitlines()) == 2 and "looked_at.py idle" in told, told
    assert "The critical path of each step" in look("explain", job).stdout
    made = look("report", job, "--output", str(tmp_path / "report"))
    assert made.returncode == 0, made
    assert "The critical path of each step" in (tmp_path / "report" / "index.html").read_text()
    events = json.loads((tmp_path / "report" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["name"] == "REDUCE"} == {*range(RANKS)}
    folder.chmod(0o755)
    assert "is not a folder of this user's alone (mode 0700)" in look("top").stderr


def test_a_stopped_rank_is_told(
    looked: Callable[..., tuple[Path, Path]],
    look: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    looked("idle")
    Job().wait_until(lambda: len(_doors(tmp_path / "look")) == RANKS, "the ranks' start")
    pid = next(int(name.split(".")[2]) for name in _doors(tmp_path / "look") if ".0." in name)
    os.kill(pid, signal.SIGSTOP)
    try:
        told = look("explain").stdout
        shown = look("top", "--once").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    silent = f"ank 0 does not answer: process {pid} is stopped"
    assert f"R{silent}. Advice: let the process go on" in told, told
    assert f"! r{silent}" in shown, shown


def test_ranks_of_other_hosts_are_asked_over_the_jobs_links(
    looked: Callable[..., tuple[Path, Path]],
    look: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    folders = tmp_path / "hosts"
    folders.mkdir()
    now, moment = looked("stalled", "--tcp", HOROACC_SIMULATED_HOSTS="2+1", LOOK_DIRS=str(folders))
    here = str(folders / "2")  # a host of one rank
    Job().wait_until(lambda: bool(_doors(folders / "2")), "the ranks' start")
    now.touch()
    Job().wait_until(moment.exists, "the stall")
    time.sleep(0.5)
    facts = json.loads(look("top", "--json", HOROACC_LOOK_DIR=here).stdout)
    assert [row["silent"] for row in facts["ranks"]] == [False] * RANKS, facts
    assert facts["oldest"]["missing"] == [1] and facts["oldest"]["waiting"] == [0, 2], facts
    told = look("explain", HOROACC_LOOK_DIR=here).stdout
    assert re.search(SHOWN["stalled"][1], told), told


def test_a_look_at_much_ends_no_job(
    looked: Callable[..., tuple[Path, Path]],
    look: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Another host's rank tells the latest of what would be some megabytes."""
    folders = tmp_path / "hosts"
    folders.mkdir()
    _, moment = looked(
        "wordy", "--tcp", HOROACC_SIMULATED_HOSTS="2+1", LOOK_DIRS=str(folders),
        HOROACC_FLIGHT_EVENTS="20000",
    )  # fmt: skip
    Job().wait_until(moment.exists, "many calls")
    here = str(folders / "2")
    for _ in range(2):
        assert "does not answer" not in look("explain", HOROACC_LOOK_DIR=here).stdout
        facts = json.loads(look("top", "--json", HOROACC_LOOK_DIR=here).stdout)
        assert not facts["failure"], facts
        assert [row["silent"] for row in facts["ranks"]] == [False] * RANKS, facts


ASKS_AS = """
import os, socket, sys
user, folder, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.chdir(folder)
link = socket.socket(socket.AF_UNIX)
os.setresuid(user, user, user)
link.connect(name)
answer = b""
try:
    link.sendall(b"0 1 1\\n")
    answer = link.recv(10)
except OSError:
    pass
print("ANSWER" if answer else "NOTHING")
"""


def test_others_get_no_answer(looked: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can ask as another user")
    looked("idle")
    Job().wait_until(lambda: len(_doors(tmp_path / "look")) == RANKS, "the ranks' start")
    place = tmp_path / "look" / _doors(tmp_path / "look")[0]
    place.parent.chmod(0o711)  # as for a process that got in somehow
    place.chmod(0o666)
    answers = [
        subprocess.run(
            [sys.executable, "-c", ASKS_AS, str(user), str(place.parent), place.name],
            capture_output=True, text=True, timeout=300, check=True,
        ).stdout
        for user in (0, 65534)
    ]  # fmt: skip
    assert answers[0].startswith("ANSWER") and answers[1] == "NOTHING\n", answers
