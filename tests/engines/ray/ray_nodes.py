"""A Ray cluster on this machine, whose nodes have addresses of their own: 127.0.0.2 and so on."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

SECONDS = 60.0
MARK = "HOROACC_TEST_RAY"
# The examples need what most tests do without.
ABSENT = str(Path(__file__).resolve().parents[2] / "absent")
HERE = str(Path(__file__).parent)
# Of what HoroACC starts: Ray names a process after its actor's class.
OURS = ("ray::BaseHorovodWorker", "ray::HostAgent", "horoacc.launcher", "run_as_job")


def until(true: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Waits for a condition, and gives what it gave."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, f"not after {seconds:g} s: {what}"
        time.sleep(0.02)
    return found


class Nodes:
    """The cluster. Its head has no CPUs, so that nothing of a job is there."""

    def __init__(self) -> None:
        # So that it needs no token in the user's home, and all its processes can be found.
        self.mark = secrets.token_hex(8)
        path = [one for one in os.environ.get("PYTHONPATH", "").split(":") if one != ABSENT]
        os.environ |= {
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": ":".join([HERE, *path]),
            MARK: self.mark,
        }
        # By default Ray takes 15 s to find that a raylet was killed.
        config = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000}
        head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "_system_config": config}
        # Ray's client server asks the other for the environment of its processes.
        ports = {name: free_port() for name in ("ray_client_server_port", "runtime_env_agent_port")}
        self._cluster = Cluster(initialize_head=True, head_node_args=head | ports)
        self._nodes: dict[str, Any] = {}
        self._killed: set[str] = set()
        self.address = str(self._cluster.address)
        host = self.address.partition(":")[0]
        self.client = f"ray://{host}:{ports['ray_client_server_port']}"

    def connect(self) -> None:
        """Connects this process, as a driver."""
        ray.init(address=self.address, log_to_driver=False, namespace="tests")

    def add(self, last: int, cpus: int = 2, gpus: int = 0, **resources: float) -> str:
        """Adds a node with an address of its own, and gives it."""
        address = f"127.0.0.{last}"
        self._nodes[address] = self._cluster.add_node(
            num_cpus=cpus, num_gpus=gpus, node_ip_address=address, resources=resources
        )
        return address

    def kill(self, address: str) -> float:
        """Kills a node's raylet; gives the time."""
        raylet = self._nodes[address].all_processes["raylet"][0].process
        now = time.time()
        os.kill(raylet.pid, signal.SIGKILL)
        self._killed.add(address)
        return now

    def drain(self, address: str) -> None:
        """Asks Ray to drain a node, as its autoscaler does."""
        (node,) = [n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == address]
        program = str(Path(sys.executable).with_name("ray"))
        subprocess.run(
            [program, "drain-node", "--address", self.address, "--node-id", node,
             "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test",
             "--deadline-remaining-seconds", "600"],
            check=True, timeout=SECONDS,
        )  # fmt: skip

    def remove(self, address: str) -> None:
        """Ends a node that may have been killed."""
        graceful = address not in self._killed
        self._cluster.remove_node(self._nodes.pop(address), allow_graceful=graceful)
        until(lambda: address not in living(), f"{address} is gone")

    def left(self) -> list[str]:
        """Processes that HoroACC has started here, in this cluster or beside this driver."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                mark = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
            except (OSError, UnicodeDecodeError):
                continue
            if mark and any(name in line for name in OURS):
                found.append(f"{entry.name}: {line[:100]}")
        return found

    def expect_nothing_left(self) -> None:
        """No process, and no resource that is in use."""
        until(lambda: not self.left(), f"processes have ended, but {self.left()}", 20.0)
        until(lambda: _cpus(ray.available_resources()) == _cpus(ray.cluster_resources()),
              "all CPUs are free", 20.0)  # fmt: skip
        states = {group["state"] for group in ray.util.placement_group_table().values()}
        assert states <= {"REMOVED"}

    def close(self) -> None:
        """Ends all of it."""
        ray.shutdown()
        self._cluster.shutdown()


def living() -> list[str]:
    """The addresses of living nodes."""
    return [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]


def _cpus(resources: dict[str, float]) -> tuple[float, ...]:
    return tuple(resources.get(name, 0.0) for name in ("CPU", "GPU"))


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
