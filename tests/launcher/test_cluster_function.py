"""`cluster_function` by a cluster whose hosts are names of this one, and its agents children."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import run_bodies

from horoacc.elastic import FixedHosts
from horoacc.errors import RankFailed
from horoacc.launcher.cluster_function import ClusterFunction
from horoacc.launcher.courier import VARIABLE, Courier, Post

SECONDS = 60.0


class Children:
    """Agents as children of this process."""

    address = "127.0.0.1"

    def __init__(self, hosts: dict[str, int], courier: Courier, refused: str = "") -> None:
        self.discovery = FixedHosts(hosts)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: list[str] = []
        self._courier = courier
        self._refused = refused

    def start_agent(
        self, host: str, number: int, environ: Mapping[str, str], lost: Callable[[str], None]
    ) -> None:
        if host == self._refused:
            raise OSError("no room")
        command = [sys.executable, "-m", "horoacc.launcher.elastic.agent", str(number), host]
        environ = {**os.environ, **environ, VARIABLE: self._courier.name}
        agent = subprocess.Popen(command, env=environ)
        self.agents[host] = agent
        threading.Thread(target=lambda: lost(f"code {agent.wait()}"), daemon=True).start()

    def stop_agent(self, host: str) -> None:
        self.stopped.append(host)


def called(
    func: Callable[..., Any],
    *args: Any,
    hosts: dict[str, int],
    refused: str = "",
    least: int = 1,
    during: Callable[[Children], None] | None = None,
) -> tuple[list[Any], Children]:
    with ClusterFunction(["--min-num-proc", str(least)], {"EXTRA": "1"}) as function:
        courier = Courier(
            cloudpickle.dumps((func, args, {})), sys.path, lambda *told: function.keep(*told)
        )
        cluster = Children(hosts, courier, refused)
        if during:
            threading.Thread(target=during, args=(cluster,), daemon=True).start()
        code = function.run(cluster)
        for agent in cluster.agents.values():
            agent.wait(SECONDS)
        courier.close(SECONDS)
        return function.results(code), cluster


def two_hosts() -> dict[str, int]:
    return {"localhost": 2, "127.0.0.1": 1}


def test_results_by_rank_on_two_hosts() -> None:
    results, cluster = called(run_bodies.summed, 1.0, hosts=two_hosts(), least=3)
    assert results == [(rank, 3, 3.0) for rank in range(3)]
    assert set(cluster.agents) == set(two_hosts())
    assert {agent.returncode for agent in cluster.agents.values()} == {0}


def _no(reason: str) -> None:
    raise run_bodies.Refusal(reason, 3)


def test_an_exception_of_a_rank_is_raised() -> None:
    with pytest.raises(run_bodies.Refusal, match="no 3"):
        called(_no, "no", hosts={"localhost": 1})


def test_a_rank_that_dies_is_named() -> None:
    # A host is left out after its third failure, and then there is none.
    with pytest.raises(RankFailed, match=r"was killed by SIGKILL[^$]*no host is left"):
        called(functools.partial(os.kill, 0, signal.SIGKILL), hosts={"localhost": 1})


def test_a_host_without_an_agent_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    results, cluster = called(run_bodies.summed, 1.0, hosts=two_hosts(), refused="127.0.0.1")
    assert [size for _, size, _ in results] == [2, 2]
    assert (
        "host 127.0.0.1 is lost: no agent can be started there: no room" in capfd.readouterr().err
    )
    assert cluster.stopped == ["127.0.0.1"]


def _wait_for(path: Path) -> int:
    import horoacc as hvd

    hvd.init()
    size = hvd.size()
    while not path.exists():
        time.sleep(0.02)
    return size


def test_hosts_that_come_late_are_used(tmp_path: Path) -> None:
    def add(cluster: Children) -> None:
        time.sleep(0.2)
        cluster.discovery.set(two_hosts())
        (tmp_path / "go").touch()

    results, _ = called(_wait_for, tmp_path / "go", hosts={"localhost": 2}, least=3, during=add)
    assert results == [3, 3, 3]


def test_a_courier_of_nobody() -> None:
    with pytest.raises(OSError):
        Post("horoacc-nobody")
