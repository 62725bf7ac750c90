"""Lines of many ranks: whole, named, coloured only on a terminal, copied to files."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

from launcher_jobs import RANK, Job


def python(program: str) -> list[str]:
    return [sys.executable, "-c", f"import os, sys, time\n{program}"]


def on_terminal(job: Job, *arguments: str, **more: str) -> bytes:
    """The output to a terminal."""
    leader, follower = pty.openpty()
    environ = job.environ(TERM="xterm", **more)
    pid = os.fork()
    if pid == 0:
        os.login_tty(follower) if hasattr(os, "login_tty") else _login(follower)
        os.execve(sys.executable, job.command(*arguments), environ)
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(leader)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    return shown


def _login(follower: int) -> None:
    os.setsid()
    for fd in range(3):
        os.dup2(follower, fd)


def test_lines_of_sixteen_ranks_are_never_torn(job: Job, mode: list[str]) -> None:
    program = """
rank = os.environ.get("HOROACC_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
for i in range(40):
    line = ("%s.%d " % (rank, i)) * (1 + i * i)
    cut = len(line) // 2
    for part in (line[:cut], line[cut:] + "\\n"):
        os.write(1, part.encode())
"""
    result = job.run(*mode, "-np", "16", *python(program))
    lines = result.out.splitlines()
    assert len(lines) == 16 * 40
    for rank in range(16):
        expected = [(f"{rank}.{i} ") * (1 + i * i) for i in range(40)]
        assert result.of(rank) == expected


def test_partial_lines_wait_for_their_end(job: Job, mode: list[str]) -> None:
    program = "printf 'one '; sleep 0.2; printf 'line\\nno end'"
    result = job.run(*mode, "-np", "2", "sh", "-c", program)
    assert result.of(0) == result.of(1) == ["one line", "no end"]
    assert result.out.endswith("\n")


def test_long_lines_bytes_and_empty_lines(job: Job) -> None:
    program = """
os.write(1, b"x" * 1_000_000 + b"\\n\\n\\xff\\xfe\\n")
os.write(1, "\\u00e4\\r\\n".encode())
"""
    process = job.start("--tcp", "-np", "1", *python(program))
    out, _ = process.communicate(timeout=300)
    lines = out.split(b"\n")
    assert lines[0] == b"[0] " + b"x" * 1_000_000
    assert lines[1:] == [b"[0] ", b"[0] \xff\xfe", "[0] \u00e4".encode(), b""]


def test_both_streams_keep_apart(job: Job, mode: list[str]) -> None:
    result = job.run(*mode, "-np", "2", "sh", "-c", f"echo to out {RANK}; echo to err {RANK} >&2")
    for rank in range(2):
        assert result.of(rank) == [f"to out {rank}"]
        assert result.of(rank, "err") == [f"to err {rank}"]


BAR = """
rank = os.environ["HOROACC_RANK"]
for i in (1, 2, 3):
    sys.stderr.write("\\r%s: %d/3" % (rank, i)); sys.stderr.flush(); time.sleep(0.1)
sys.stderr.write("\\n")
"""


def test_progress_bar_of_rank_0_passes_through_and_others_come_as_lines(job: Job) -> None:
    err = job.run("--tcp", "-np", "2", *python(BAR)).err
    for i in (1, 2, 3):
        assert f"\r[0] 0: {i}/3" in err
    assert err.count("1: ") == 1 and "[1] 1: 3/3\n" in err
    # A line of another rank never continues rank 0's bar.
    for piece in re.split(r"[\r\n]", err):
        assert piece == "" or re.fullmatch(r"\[0\] 0: \d/3|\[1\] 1: 3/3", piece), piece


def test_progress_bar_shows_before_its_line_ends(job: Job) -> None:
    program = "sys.stderr.write('\\rhalf'); sys.stderr.flush(); sys.stdin.read(1)"
    process = job.start("--tcp", "-np", "1", *python(program), stdin=-1)
    assert process.stderr and process.stdin
    assert os.read(process.stderr.fileno(), 100) == b"\r[0] half"
    process.communicate(b"x", timeout=300)
    assert process.returncode == 0


def test_bar_stays_below_other_lines_on_a_terminal(job: Job, tmp_path: Path) -> None:
    # Each waits for the other, and then long enough for horoaccrun to have read its output.
    program = f"""
def wait_for(name):
    while not os.path.exists({str(tmp_path)!r} + name): time.sleep(0.02)
    time.sleep(0.8)
def tell(name): open({str(tmp_path)!r} + name, "w").close()
if os.environ["HOROACC_RANK"] == "0":
    sys.stderr.write("\\rbar"); sys.stderr.flush(); tell("/bar"); wait_for("/line")
    sys.stderr.write("\\rbar done\\n")
else:
    wait_for("/bar"); print("line", flush=True); tell("/line")
"""
    shown = on_terminal(job, "--tcp", "-np", "2", *python(program), NO_COLOR="1")
    assert b"\r[0] bar\r\x1b[K[1] line\r\n[0] bar\r[0] bar done\r\n" in shown


def test_colour_only_on_a_terminal_and_not_under_no_color(job: Job) -> None:
    command = ["--tcp", "-np", "2", "echo", "hello"]
    assert "\x1b" not in job.run(*command).out
    shown = on_terminal(job, *command)
    found = re.findall(rb"\x1b\[(\d+)m\[(\d)\]\x1b\[0m hello", shown)
    assert {rank for _, rank in found} == {b"0", b"1"}
    assert len({colour for colour, _ in found}) == 2
    assert b"\x1b" not in on_terminal(job, *command, NO_COLOR="1")


def test_timestamps(job: Job) -> None:
    out = job.run("--tcp", "--prefix-output-with-timestamp", "-np", "1", "echo", "hello").out
    assert re.fullmatch(r"\[0\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} hello\n", out)


def test_output_files_hold_each_ranks_bytes(job: Job, mode: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    program = f'printf "a\\rb {RANK}\\nno end"; echo to err >&2'
    result = job.run(*mode, "--output-filename", str(folder), "-np", "2", "sh", "-c", program)
    for rank in range(2):
        place = folder / f"rank.{rank}"
        assert (place / "stdout").read_bytes() == f"a\rb {rank}\nno end".encode()
        assert (place / "stderr").read_bytes() == b"to err\n"
    assert result.of(1) == ["b 1", "no end"]


def test_output_files_that_cannot_be_written(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "folder")
    result = job.run("--tcp", "--output-filename", folder, "-np", "1", "echo", "no", code=1)
    assert result.err == f"horoaccrun: --output-filename {folder}: Not a directory\n"
    assert result.out == ""
    # One rank's, while the job runs.
    (tmp_path / "rank.1").touch()
    result = job.run("--tcp", "--output-filename", str(tmp_path), "-np", "2", "echo", "on")
    assert result.of(0) == result.of(1) == ["on"]
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"on\n"
    assert f"cannot write to '{tmp_path}/rank.1/stdout' any more (File exists)" in result.err


def test_verbose_says_what_is_started(job: Job) -> None:
    err = job.run("--tcp", "--verbose", "-np", "2", "echo", "a b").err
    assert err == "horoaccrun: 2 ranks, without mpirun: echo 'a b'\n"
    assert "--map-by slot:OVERSUBSCRIBE" in job.run("--mpi", "--verbose", "-np", "1", "true").err


def test_reader_that_goes_away_ends_the_job(job: Job, mode: list[str]) -> None:
    process = job.start(*mode, "-np", "2", "sh", "-c", "while echo line; do sleep 0.01; done")
    assert process.stdout and process.stderr
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=300) == 128 + 13
    process.stderr.close()
    job.expect_nothing_left()
