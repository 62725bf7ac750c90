"""The socket at which a launcher's loop is asked: clients that do not read, what is left, and what
whoever asks believes of an answer.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import Job

from horoacc.launcher.arguments import parse_arguments
from horoacc.launcher.doctor.reach import Unreached
from horoacc.launcher.look import remote_ranks
from horoacc.launcher.look.asking import Asker, Scope
from horoacc.launcher.look.jobs import RunningJob, find_job
from horoacc.launcher.look.look_server import framed_status, is_whole
from horoacc.launcher.look.remote_ranks import RemoteRanks, how_reached
from horoacc.monitor.door import LAUNCHER, ask, listen

BYTES = 8 << 20  # more than sockets hold
LOOP = f"""
import os
from horoacc.launcher.look import look_server
from horoacc.launcher.output import Printer
from horoacc.launcher.supervise import Supervisor

look_server._ANSWER_SECONDS = 1.0

class Loop(Supervisor):
    def _finished(self):
        return self.stopping is not None

def answer(question, reply):
    reply.give(b"x" * {BYTES})
    reply.end()

loop = Loop(Printer(os.environ), 0, 0.0)
assert look_server.serve_looks(loop, "job", "launcher", os.environ, answer) == ""
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


def test_a_client_that_does_not_read_keeps_nobody_waiting(
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


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        (b"0 2\nab", True),
        (b"0 2\nab-1 0\n", True),
        (b"0 2\nab1 3\nab", False),
        (b"0 2\nabc", False),
        (b"0 -2\nab", False),
        (b"0 2", False),
        (b"", False),
    ],
)
def test_an_answer_that_was_cut_off(answer: bytes, whole: bool) -> None:
    assert is_whole(answer) == whole


@pytest.mark.parametrize(
    ("host", "own", "starts", "told"),
    [
        ("h9", True, True, "h9 cannot be reached by agent: the connection ended with code 3"),
        ("h9", False, False, "does not listen itself, or is in a container's namespaces"),
        ("-oProxyCommand=x", True, False, "'-oProxyCommand=x' is no name of a host"),
    ],
)
def test_whose_word_starts_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, own: bool, starts: bool, told: str
) -> None:
    """What a launcher tells is run, but not if the file names another process."""
    monkeypatch.setenv("HOROACC_LOOK_DIR", str(tmp_path / "look"))
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 3\n")
    agent.chmod(0o755)
    listener, path = listen("job", LAUNCHER, os.environ)
    if not own:
        path.rename(path.with_name(f"job.launcher.{os.getppid()}"))
    status = framed_status(
        {"hosts": [host], "launch_agent": str(agent), "mpi_args": "", "python": "python",
         "variables": {}}
    )  # fmt: skip

    def serve() -> None:
        with listener:
            while True:
                link, _ = listener.accept()
                with link:
                    if question := link.recv(100):
                        link.sendall(status if question != b"end" else b"")
                    if question == b"end":
                        return

    server = threading.Thread(target=serve)
    server.start()
    try:
        view = Asker(RunningJob("job", ())).look(Scope(1, 1))
    finally:
        ask({0: str(next(path.parent.iterdir()))}, 5.0, b"end")
        server.join(60)
    assert told in view.no_ranks and (tmp_path / "started").exists() == starts


def test_another_host_is_asked_once_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: set[str] = set()

    class Program:
        def __init__(self, host: str, _: Any) -> None:
            self.host = host

        def ask(self, *_: Any, **__: Any) -> Any:
            if self.host in lost:
                raise Unreached("lost", "")
            return {"answers": self.host, "silent": {}}

        def close(self) -> None:
            pass

    monkeypatch.setattr(remote_ranks, "RemoteProgram", Program)
    told = {"hosts": ["h7", "h8", "h9"], "launch_agent": "", "mpi_args": "", "python": "python"}
    there = RemoteRanks("job", told | {"variables": {}})
    for host in ("h7", "h8", "h9"):
        assert there.ask("0 1 1", 1.0) == (host.encode(), {})
        assert there.ask("0 1 1", 1.0) == (host.encode(), {}) and there.host == host
        lost.add(host)
    with pytest.raises(Unreached, match="h7 cannot be reached by ssh: lost"):
        there.ask("0 1 1", 1.0)
    lost.remove("h8")
    assert there.ask("0 1 1", 1.0) == (b"h8", {})


def test_jobs_with_ranks_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of init(comm=...) are another job than that of their launcher."""
    monkeypatch.setenv("HOROACC_LOOK_DIR", str(tmp_path / "look"))
    first, _ = listen("aaaa", LAUNCHER, os.environ)
    with first:
        assert find_job(None).name == "aaaa"
        second, _ = listen("bbbb", "0", os.environ)
        with second:
            assert find_job(None).name == "bbbb"


@pytest.mark.parametrize(
    ("flags", "environ", "agent"),
    [
        ([], {}, ""),
        (["--launch-agent", "bin/reach -v"], {}, "{}/bin/reach -v"),
        ([], {"OMPI_MCA_plm_rsh_agent": "./bin/reach : rsh"}, "{}/bin/reach"),
        ([], {"HYDRA_LAUNCHER_EXEC": "no-such-program"}, "no-such-program"),
    ],
)
def test_the_way_to_other_hosts_is_known_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], environ: dict[str, str],
    agent: str,
) -> None:  # fmt: skip
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "reach").write_text("")
    (tmp_path / "bin" / "reach").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    options = parse_arguments([*flags, "-np", "1", "-H", "h9:1", "program"], {})
    told = how_reached(options, {"HOROACC_LOOK_DIR": "look"} | environ)
    assert told["launch_agent"] == agent.format(tmp_path)
    assert told["variables"]["HOROACC_LOOK_DIR"] == str(tmp_path / "look")
