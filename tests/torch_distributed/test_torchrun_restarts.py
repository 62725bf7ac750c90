"""torchrun starts the ranks again after one has died, and when agents come and go."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from restarts import environ, weights

from horoacc.launcher.environment import torchrun
from horoacc.launcher.environment.placement import Placement, PlacementError

SCRIPT = Path(__file__).resolve().parents[1] / "torch_scripts" / "restarts.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def log(folder: Path, word: str) -> list[list[str]]:
    """The lines of the script's log that begin with a word, divided."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1:] for line in lines if line.startswith(word)]


def expect_trained(folder: Path, steps: int) -> None:
    """The weights are those of a job that nothing has happened to."""
    saved = torch.load(folder / "checkpoint.pt")
    assert saved["step"] == steps
    np.testing.assert_allclose(saved["model"]["weight"][0].numpy(), weights(steps), rtol=1e-5)


def meet(store: dist.Store, ranks: list[int], size: int, seconds: float) -> list[object]:
    """Ranks, as threads, meet through a store: what each has, or the error that it got."""

    def one(rank: int) -> object:
        place = Placement(rank, size, rank, size, 0, 1, "torchrun", "tcp")
        try:
            found = torchrun.rendezvous(
                place, {"MASTER_ADDR": "127.0.0.1"}, seconds, lambda *_: store.clone()
            )
        except PlacementError as error:
            return str(error)
        if found.listen_fd is not None:
            os.close(found.listen_fd)
        return found.address, found.secret

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, ranks))


def test_a_store_that_other_rounds_have_used() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
    rounds = []
    for number in range(5):
        alone = meet(store, [1 + number % 2], 3, 0.2)  # a round of which one rank began and died
        assert "could not meet" in str(alone[0])
        found = meet(store, [2, 0, 1] if number % 2 else [0, 1, 2], 3, 30)
        assert len(set(found)) == 1 and isinstance(found[0], tuple), found
        rounds += found[:1]
    assert len(set(rounds)) == 5
    said = str(meet(store, [0, 2], 3, 1)[0])
    assert "rank 0 could not meet" in said and "rank(s) 1 did not come" in said


@pytest.mark.parametrize("how", ["horovod", "distributed"])
@pytest.mark.parametrize("store", ["agent's", "rank 0's"])
def test_the_ranks_start_again_after_a_death(tmp_path: Path, how: str, store: str) -> None:
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if store == "rank 0's" else {}
    done = subprocess.run(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "3", "--max-restarts", "3",
         str(SCRIPT), how, str(tmp_path), "9"],
        env=environ(DIES="1@3 0@5 2@5", **own), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    starts = log(tmp_path, "start")
    assert sorted(line[4] for line in starts) == sorted("0123" * 3), starts
    # Rank 0 may have died before it saved what the others computed, but not the others.
    assert {line[6] for line in starts if line[4] == "1"} == {"3"}, starts
    assert len({line[8] for line in starts}) == 12
    expect_trained(tmp_path, 9)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Agents:
    """torchruns that form one job, as on hosts of their own."""

    def __init__(self, folder: Path, how: str, steps: int) -> None:
        self.folder = folder
        self._flags = [
            *TORCHRUN, "--nnodes", "1:3", "--nproc-per-node", "1", "--max-restarts", "3",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
            "--rdzv-id", "job", "--local-addr", "127.0.0.1", "--rdzv-conf",
        ]  # fmt: skip
        self._program = [str(SCRIPT), how, str(folder), str(steps)]
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        # Else no agent can join a job that runs (torch 2.13): it waits for an address that the
        # first agent has told in the first round only.
        variables = environ(PAUSE="0.1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        # The first holds the store of the agents' own meeting.
        rules = f"is_host={int(not self.running)},last_call_timeout=1"
        rules += ",keep_alive_interval=1,keep_alive_max_attempt=5"
        with open(self.folder / f"output.{len(self.running)}", "wb") as output:
            agent = subprocess.Popen(
                [*self._flags, rules, *self._program], env=variables, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip
        self.running.append(agent)
        return agent

    def wait_until_size(self, size: int) -> None:
        """Until ranks of a job of this size have made a step after this call."""
        before = len(log(self.folder, "step"))
        deadline = time.monotonic() + 90
        while ["of", str(size)] not in [line[1:] for line in log(self.folder, "step")[before:]]:
            assert time.monotonic() < deadline, self.told()
            assert all(agent.poll() in (None, -9) for agent in self.running), self.told()
            time.sleep(0.05)

    def told(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("output.*")))

    def end(self) -> None:
        for agent in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        for _, _, _, _, _, _, _, _, pid in log(self.folder, "start"):
            with contextlib.suppress(OSError):  # a worker has a session of its own
                if str(SCRIPT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(params=["horovod", "distributed"])
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path, request.param, 400)
    try:
        yield made
    finally:
        made.end()


def test_agents_come_and_go(agents: Agents) -> None:
    """The size grows, though nobody has failed, and shrinks; each time all ranks start again."""
    agents.start()
    agents.wait_until_size(1)
    agents.start()
    agents.wait_until_size(2)
    agents.start()
    agents.wait_until_size(3)
    gone = agents.running[2]
    (pid,) = {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _parent(int(entry.name)) == gone.pid
        and str(SCRIPT).encode() in (entry / "cmdline").read_bytes()
    }  # fmt: skip
    gone.kill()
    os.kill(pid, signal.SIGKILL)
    agents.wait_until_size(2)
    (agents.folder / "hurry").touch()
    for agent in agents.running[:2]:
        assert agent.wait(timeout=300) == 0, agents.told()
    counts = {(line[2], line[4]) for line in log(agents.folder, "start")}
    # A new agent counts its restarts from 0, and growth counts as none.
    assert {("2", "0"), ("3", "0")} <= counts, counts
    expect_trained(agents.folder, 400)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
