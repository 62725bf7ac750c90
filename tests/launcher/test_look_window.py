"""The socket at which a launcher's loop is asked: visitors that do not read, and what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launcher_jobs import Job

from horoacc.monitor.door import ask

BYTES = 8 << 20  # more than sockets hold
LOOP = f"""
import os
from horoacc.launcher.look import window
from horoacc.launcher.output import Printer
from horoacc.launcher.supervise import Supervisor

window._ANSWER_SECONDS = 1.0

class Loop(Supervisor):
    def _finished(self):
        return self.stopping is not None

def answer(question, reply):
    reply.give(b"x" * {BYTES})
    reply.end()

loop = Loop(Printer(os.environ), 0, 0.0)
assert window.open_window(loop, "job", "launcher", os.environ, answer) == ""
loop.run()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], Path]]]:
    """Starts such a loop; gives its process and its socket."""
    running: list[subprocess.Popen[bytes]] = []
    with Job() as job:

        def run() -> tuple[subprocess.Popen[bytes], Path]:
            environ = job.environ(HOROACC_LOOK_DIR=str(tmp_path / "look"))
            process = subprocess.Popen([sys.executable, "-c", LOOP], env=environ)
            running.append(process)
            path = tmp_path / "look" / f"job.launcher.{process.pid}"
            job.wait_until(path.exists, "the start")
            return process, path

        yield run
        for process in running:
            process.kill()
            process.wait(300)
        job.wait_until(lambda: not job.alive(), "the end")


def test_a_visitor_that_does_not_read_keeps_nobody_waiting(
    start: Callable[[], tuple[subprocess.Popen[bytes], Path]],
) -> None:
    process, path = start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
        slow.connect(str(path))
        slow.sendall(b"0 1 1\n")
        assert len(ask({0: str(path)}, 10.0, b"0 1 1\n")[0]) == BYTES
        time.sleep(1.5)
        came = 0
        while data := slow.recv(1 << 20):
            came += len(data)
        assert 0 < came < BYTES
    process.terminate()
    process.wait(300)
    assert not path.exists()


def test_what_a_killed_launcher_leaves_is_removed(
    start: Callable[[], tuple[subprocess.Popen[bytes], Path]],
) -> None:
    process, path = start()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(300)
    assert path.exists()
    start()
    assert not path.exists()
