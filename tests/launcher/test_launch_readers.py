"""Readers of a job's output that stall, are slow or gone, and full disks: the job goes on."""

from __future__ import annotations

import functools
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launcher_jobs import ASLEEP, RANK, Job, patched

FULL = "No space left on device"
# Ranks need not wait so long in a test for a reader that reads nothing.
IMPATIENT = patched("from horoacc.launcher import sinks; sinks.STALL_SECONDS = 1.0")
KINDS = ["fixed", "elastic"]


def flags(kind: str, size: int = 2) -> list[str]:
    return ["-np", str(size), *(["--min-np", str(size)] if kind == "elastic" else ["--tcp"])]


def printer(kind: str, lines: int, stream: int = 1, then: str = "") -> list[str]:
    """A rank that prints lines of 1 KiB."""
    begin = "import horoacc; horoacc.init()" if kind == "elastic" else ""
    write = f"[os.write({stream}, b'x' * 1023 + b'\\n') for _ in range({lines})]"
    return [sys.executable, "-c", f"import os, signal, sys, time; {begin}\n{write}\n{then}"]


@contextmanager
def device(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk(job: Job, kind: str) -> None:
    with device("/dev/full") as full:
        process = job.start(
            *flags(kind), *printer(kind, 100, then="print('e', file=sys.stderr)"), stdout=full
        )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.count(FULL.encode()) == 1 and err.count(b"] e\n") == 2, err


@pytest.mark.parametrize("both", [False, True])
def test_full_disk_of_stderr(job: Job, both: bool) -> None:
    with device("/dev/full") as full:
        stdout = full if both else subprocess.PIPE
        program = ["sh", "-c", f"echo out; echo err >&2; exit {RANK}"]
        process = job.start(*flags("fixed"), *program, stdout=stdout, stderr=full)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert both or sorted(out.splitlines()) == [b"[0] out", b"[1] out"]


def test_closed_stdout(job: Job) -> None:
    process = job.start(*flags("fixed"), "echo", "line", prepare=lambda: os.close(1))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", KINDS)
def test_signal_is_heard_while_a_reader_stalls(
    job: Job, kind: str, stream: str, tmp_path: Path
) -> None:
    heard = f"lambda *_: (open('{tmp_path}/heard', 'w').close(), os._exit(3))"
    then = (
        f"signal.signal(15, {heard}); open('{tmp_path}/ready', 'w').close(); time.sleep({ASLEEP})"
    )
    process = job.start(*flags(kind, 1), *printer(kind, 1000, 1 if stream == "stdout" else 2, then))
    job.wait_until((tmp_path / "ready").exists, "the output")
    process.send_signal(signal.SIGTERM)
    job.wait_until((tmp_path / "heard").exists, "the signal's arrival", 8)
    assert process.wait(timeout=20) == 143
    job.expect_nothing_left()
    process.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_stalled_reader_holds_nothing_up_for_long(job: Job, kind: str) -> None:
    job.starter = IMPATIENT
    reader, writer = os.pipe()
    process = job.start(*flags(kind), *printer(kind, 24 << 10), stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.count(b"its reader does not read") == 1, err
    os.close(reader)


def test_a_slow_reader_gets_every_line(job: Job, tmp_path: Path) -> None:
    """It begins when all that is kept for it has been printed, and ranks wait."""
    then = f"open('{tmp_path}/done.' + os.environ['HOROACC_RANK'], 'w').close()"
    process = job.start(*flags("fixed"), *printer("fixed", 24 << 10, then=then))
    assert process.stdout and process.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    assert not list(tmp_path.iterdir())
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert sorted(set(out.splitlines())) == [b"[%d] " % rank + b"x" * 1023 for rank in range(2)]
    assert out.count(b"\n") == 2 * (24 << 10)


def test_lost_lines_are_counted_where_they_are_missing(job: Job, tmp_path: Path) -> None:
    job.starter = IMPATIENT
    lines = 24 << 10
    then = f"while not os.path.exists('{tmp_path}/go'): time.sleep(0.05)\nprint('last')"
    process = job.start(*flags("fixed", 1), *printer("fixed", lines, then=then))
    assert process.stdout and process.stderr
    assert b"its reader does not read" in process.stderr.readline()
    shown: list[bytes] = []
    pipe = process.stdout
    reading = threading.Thread(target=lambda: shown.extend(pipe.readlines()))
    reading.start()
    (tmp_path / "go").touch()
    reading.join()
    assert process.wait(timeout=60) == 0
    process.communicate()
    lost = [int(line.split()[1]) for line in shown if line.startswith(b"horoaccrun")]
    assert lost and shown[-1] == b"[0] last\n"
    assert len(shown) - 1 - len(lost) + sum(lost) == lines


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("kind", KINDS)
def test_signals_that_are_ignored_stay_so(job: Job, kind: str, number: int, tmp_path: Path) -> None:
    then = f"""open("{tmp_path}/ready", "w").close()
while not os.path.exists("{tmp_path}/go"): time.sleep(0.05)
print("done")"""
    ignore = functools.partial(signal.signal, number, signal.SIG_IGN)
    process = job.start(*flags(kind, 1), *printer(kind, 0, then=then), prepare=ignore)
    job.wait_until((tmp_path / "ready").exists, "the start")
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"[0] done\n"), err


def test_nohup_with_a_terminal_that_is_closed(job: Job, tmp_path: Path) -> None:
    leader, follower = pty.openpty()

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.setsid()
        os.close(os.open(os.ttyname(follower), os.O_RDWR))  # this session's terminal

    program = f"touch {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    program += f"; seq 5; echo err >&2; touch {tmp_path}/done; exit 6"
    process = job.start(
        *flags("fixed", 1), "sh", "-c", program,
        stdin=follower, stdout=follower, stderr=follower, prepare=prepare,
    )  # fmt: skip
    os.close(follower)
    job.wait_until((tmp_path / "ready").exists, "the start")
    os.close(leader)
    (tmp_path / "go").touch()
    assert process.wait(timeout=60) == 6
    assert (tmp_path / "done").exists()
