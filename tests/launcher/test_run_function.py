"""`horoacc.run`: results by rank, a rank's exception with its traceback, nothing left behind."""

from __future__ import annotations

import inspect
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import run_bodies
from launcher_jobs import Job

import horoacc
from horoacc.errors import RankFailed
from horoacc.launcher.function import collect


@pytest.fixture(autouse=True)
def tidy(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts carries the job's mark, and every folder lies in one."""
    for name in [n for n in os.environ if n.startswith(("HOROACC_", "HOROVOD_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("HOROACC_TEST_MARK", job.mark)
    monkeypatch.setenv("HOROACC_GRACE_SECONDS", "2")
    yield
    job.expect_nothing_left()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("ways", [{"use_gloo": True}, {}], ids=["tcp", "default"])
def test_results_come_by_rank(ways: dict[str, Any]) -> None:
    found = horoacc.run(run_bodies.summed, args=(2.0,), kwargs={"second": 0.5}, np=3, **ways)
    assert found == [(rank, 3, 7.5) for rank in range(3)]


def test_a_job_of_one_rank_is_the_default() -> None:
    assert horoacc.run(run_bodies.summed, (2.0,)) == [(0, 1, 2.0)]


def test_functions_that_no_module_has_travel_whole() -> None:
    factor = 3
    assert horoacc.run(lambda x: x * factor, (5,), num_proc=2, use_gloo=True) == [15, 15]


def test_large_arguments_and_results() -> None:
    count = 3_000_000
    (found,) = horoacc.run(run_bodies.large, (count,), use_gloo=True)
    assert found.shape == (count,) and found[-1] == count - 1
    assert horoacc.run(np.sum, (found,), use_gloo=True) == [count * (count - 1) // 2]


@pytest.mark.parametrize("ways", [{"use_gloo": True}, {}], ids=["tcp", "default"])
def test_an_exception_comes_back_with_its_traceback(ways: dict[str, Any]) -> None:
    with pytest.raises(run_bodies.Refusal, match="no more than 7") as caught:
        horoacc.run(run_bodies.refuses_on_1, np=2, **ways)
    assert caught.value.amount == 7
    cause = str(caught.value.__cause__)
    assert cause.startswith("on rank 1:\n\nTraceback") and "in refuses_on_1" in cause
    assert caught.value.__notes__ == ["raised on rank 1"]


def test_an_exception_whose_class_takes_other_arguments_comes_back_whole() -> None:
    with pytest.raises(run_bodies.Stubborn, match="not again 3") as stubborn:
        horoacc.run(run_bodies.raises_on_0, ("stubborn",), np=2, use_gloo=True)
    assert stubborn.value.args == ("not again 3",) and stubborn.value.amount == 3
    inside = stubborn.value.cause
    assert isinstance(inside, run_bodies.Stubborn) and (str(inside), inside.amount) == (
        "inside 4", 4)  # fmt: skip
    assert "in raises_on_0" in str(stubborn.value.__cause__)
    with pytest.raises(run_bodies.Undecoded, match="can't decode byte 0xff") as undecoded:
        horoacc.run(run_bodies.raises_on_0, ("undecoded",), np=1, use_gloo=True)
    assert (undecoded.value.object, undecoded.value.start) == (b"a\xff", 1)
    assert undecoded.value.length == 2


@pytest.mark.parametrize(
    ("kind", "told"), [("clutching", "Clutching: mine"), ("gone", "Gone: gone")]
)
def test_an_exception_that_cannot_travel_is_told(kind: str, told: str) -> None:
    with pytest.raises(RankFailed, match=f"rank 0: {told}") as caught:
        horoacc.run(run_bodies.raises_on_0, (kind,), np=1, use_gloo=True)
    assert caught.value.culprit == 0 and "in raises_on_0" in str(caught.value.__cause__)


@pytest.mark.parametrize("code", [0, 3])
def test_an_exit_is_no_result(code: int) -> None:
    with pytest.raises(RuntimeError, match=rf"SystemExit\({code}\) instead of a result"):
        horoacc.run(run_bodies.leaves, (code,), np=1, use_gloo=True)


@pytest.mark.parametrize("ways", [{"use_gloo": True}, {}], ids=["tcp", "default"])
def test_a_rank_that_dies_is_named(ways: dict[str, Any], tmp_path: Path) -> None:
    words = r"rank 1 was killed by SIGKILL.*\nthese are my last words"
    with pytest.raises(RankFailed, match=words) as caught:
        horoacc.run(run_bodies.dies_on_1, (str(tmp_path),), np=3, **ways)
    assert caught.value.culprit == 1


def test_a_rank_that_vanishes_is_named() -> None:
    with pytest.raises(RankFailed, match="rank 0 ended without a result"):
        horoacc.run(run_bodies.vanishes, use_gloo=True)


def test_a_result_that_cannot_be_pickled_is_told() -> None:
    with pytest.raises(TypeError, match="rank 0 returned a lock that cannot be pickled"):
        horoacc.run(run_bodies.returns_a_lock, use_gloo=True)
    with pytest.raises(TypeError, match="pickle"):
        horoacc.run(run_bodies.large, (run_bodies.returns_a_lock(),))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"np": 0}, "-np must be at least 1, not 0"),
        ({"np": 2, "min_np": 3, "max_np": 2}, "max_np is 2, which is below min_np, 3"),
        ({"np": 2, "min_np": 1, "cooldown_range": (2, 1)}, "blacklist_cooldown_range must be two"),
        ({"np": 2, "hosts": "localhost:1"}, "asks for 2 ranks.*has 1 slots"),
        ({"np": 1, "hosts": "elsewhere.invalid:1"}, "elsewhere.invalid is another"),
        ({"np": 1, "hosts": "localhost:1", "hostfile": "hosts"}, "cannot both be given"),
        ({"np": 1, "use_gloo": True, "use_mpi": True}, "cannot both be given"),
        ({"np": 1, "start_timeout": -3}, "--start-timeout must be a number of at least 0"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        horoacc.run(run_bodies.summed, (1.0,), **arguments)


def test_num_proc_wins_over_np() -> None:
    assert len(horoacc.run(os.getpid, num_proc=2, np=3, use_gloo=True)) == 2


def test_hosts_env_and_output_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = horoacc.run(
        run_bodies.variable, ("COLOUR",), np=2, hosts="localhost:2", env={"COLOUR": "blue"},
        use_gloo=True, start_timeout=30, disable_cache=True,
    )  # fmt: skip
    assert found == ["blue", "blue"] and "COLOUR" not in os.environ
    logs = tmp_path / "logs"
    horoacc.run(run_bodies.prints, np=2, use_gloo=True, output_filename=str(logs), verbose=True)
    for rank in range(2):
        assert (logs / f"rank.{rank}" / "stdout").read_text() == f"from rank {rank}\n"
        assert (logs / f"rank.{rank}" / "stderr").read_text() == f"error of {rank}\n"
    shown = capfd.readouterr()
    assert "--disable-cache has no effect" in shown.err and "2 ranks, without mpirun" in shown.err


def test_what_ranks_print_comes_where_python_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """As in a notebook, whose sys.stdout is not the process's."""
    horoacc.run(run_bodies.prints, np=2, use_gloo=True)
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["[0] from rank 0", "[1] from rank 1"]
    assert sorted(shown.err.splitlines()) == ["[0] error of 0", "[1] error of 1"]


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No other user can put a file there that this process unpickles."""
    seen: list[int] = []
    real = cloudpickle.loads

    def look(data: bytes) -> Any:
        (folder,) = Path(os.environ["TMPDIR"]).iterdir()
        seen.append(stat.S_IMODE(folder.stat().st_mode))
        return real(data)

    monkeypatch.setattr(cloudpickle, "loads", look)
    assert horoacc.run(os.getcwd, use_gloo=True) == [os.getcwd()]
    assert seen == [0o700]


INTERACTIVE = """
import horoacc
base = 40
def answer(x):
    import horoacc as hvd
    hvd.init()
    return base + x + hvd.rank()

print(horoacc.run(answer, (2,), np=2, use_gloo=True))
"""


def test_functions_of_an_interactive_session(job: Job) -> None:
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input=INTERACTIVE, env=job.environ(),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "[42, 43]" in done.stdout, done.stderr


INTERRUPTED = """
import signal, sys, horoacc, run_bodies
# A shell that starts the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    horoacc.run(run_bodies.sleeps, (sys.argv[1],), np=2, use_gloo=True)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_caller_is_interrupted_or_killed(
    job: Job, tmp_path: Path, number: int
) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    caller = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        env=job.environ(PYTHONPATH=path), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    there = [tmp_path / f"there.{rank}" for rank in range(2)]
    job.wait_until(lambda: all(file.exists() for file in there), "both ranks' start")
    caller.send_signal(number)
    out, _ = caller.communicate(timeout=300)
    assert out == ("interrupted\n" if number == signal.SIGINT else "")
    job.expect_nothing_left()
    deadline = time.monotonic() + 10
    while list(Path(os.environ["TMPDIR"]).iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_job_whose_own_process_is_killed(job: Job, tmp_path: Path) -> None:
    there = [tmp_path / f"there.{rank}" for rank in range(2)]

    def kill() -> None:
        job.wait_until(lambda: all(file.exists() for file in there), "both ranks' start")
        for pid, _ in job.alive():
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RuntimeError, match="the job's own process was killed by signal 9"):
        horoacc.run(run_bodies.sleeps, (str(tmp_path),), np=2, use_gloo=True)
    killer.join()


@pytest.mark.parametrize(
    ("hosts", "failed", "culprit"),
    [
        ("aabb", 2, 2),  # the clock of b is ahead
        ("aabb", 3, 2),  # on its host another one was earlier
        ("aaaa", 2, 1),
        ("aabb", None, 1),
    ],
)
def test_the_first_exception_is_the_one_of_the_first_failed_host(
    tmp_path: Path, hosts: str, failed: int | None, culprit: int
) -> None:
    for rank, (host, at) in enumerate(zip(hosts, (9.0, 5.0, 100.0, 101.0), strict=True)):
        told = {"host": host, "time": at, "summary": "", "traceback": "", "exception": None}
        (tmp_path / f"error.{rank}").write_bytes(cloudpickle.dumps(told))
    outcome = {"refused": "", "failed": failed, "text": "", "size": 4, "fixed": True}
    (tmp_path / "outcome").write_text(json.dumps(outcome))
    with pytest.raises(RankFailed) as caught:
        collect(tmp_path, 1)
    assert caught.value.culprit == culprit


def test_horovods_names_reach_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    horoacc.install_as_horovod()
    assert horoacc.run(run_bodies.imports_horovod, use_gloo=True) == [True]


def test_the_parameters_are_horovods() -> None:
    found = {name: p.default for name, p in inspect.signature(horoacc.run).parameters.items()}
    empty = inspect.Parameter.empty
    assert found == {
        "func": empty, "args": (), "kwargs": None, "num_proc": 1, "min_num_proc": None,
        "max_num_proc": None, "slots": None, "reset_limit": None, "cooldown_range": None,
        "hosts": None, "hostfile": None, "host_discovery_script": None, "start_timeout": None,
        "ssh_port": None, "ssh_identity_file": None, "disable_cache": None,
        "output_filename": None, "verbose": None, "use_gloo": None, "use_mpi": None,
        "mpi_args": None, "network_interface": None, "network_interfaces": None,
        "executable": None, "np": None, "min_np": None, "max_np": None, "env": None,
        "host_discovery": None,
    }  # fmt: skip
