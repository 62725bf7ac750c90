"""Nodes as the hosts of elastic jobs, and arguments that cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import ray_bodies
from ray.exceptions import TaskUnschedulableError
from ray_nodes import SECONDS, Nodes, until

from horoacc.elastic import FixedHosts
from horoacc.ray import ElasticRayExecutor, RayExecutor, RayHostDiscovery, host_discovery
from horoacc.ray.elastic_job import ElasticJob
from horoacc.ray.host_discovery import NodeHosts

SETTINGS = RayExecutor.create_settings


def hosts(**arguments: Any) -> dict[str, int]:
    return RayHostDiscovery(**arguments).find_available_hosts_and_slots()


def test_nodes_and_their_slots(nodes: Nodes) -> None:
    both = {"127.0.0.2", "127.0.0.3"}
    assert hosts() == dict.fromkeys(both, 2)
    assert hosts(cpus_per_slot=2) == hosts(cpus_per_worker=2) == dict.fromkeys(both, 1)
    assert hosts(cpus_per_slot=3) == hosts(use_gpu=True) == {}
    address = nodes.add(7, cpus=8, gpus=4)
    assert hosts(use_gpu=True) == {address: 4}
    assert hosts(use_gpu=True, gpus_per_slot=2) == {address: 2}
    assert hosts(use_gpu=True, cpus_per_slot=3) == {address: 2}
    nodes.remove(address)


@pytest.mark.parametrize(
    ("resources", "arguments", "slots"),
    [
        ({"CPU": 8, "GPU": 2}, {}, 2),
        ({"CPU": 8, "GPU": 2}, {"gpus_per_slot": 2}, 1),
        ({"CPU": 8}, {}, None),
    ],
)
def test_gpus_of_several_nodes(
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, int],
    arguments: dict[str, int],
    slots: int | None,
) -> None:
    names = [f"host-{number}" for number in (1, 2, 3)]
    told = [{"NodeManagerAddress": n, "Resources": resources, "alive": True} for n in names]
    monkeypatch.setattr(ray, "nodes", lambda: told)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert hosts(use_gpu=True, **arguments) == (dict.fromkeys(names, slots) if slots else {})


def test_a_late_refusal_does_not_make_a_host_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounds: whether the probe has an answer, and whether the node is a host then."""
    told = [{"NodeManagerAddress": "a", "Resources": {"CPU": 1}, "alive": True}]
    answer: Any = None

    def get(_: object) -> None:
        if answer == "refused":
            raise TaskUnschedulableError("drained")

    monkeypatch.setattr(ray, "nodes", lambda: told)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "wait", lambda refs, **_: (refs if answer else [], []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(host_discovery, "_probe", lambda node: object())
    discovery = RayHostDiscovery()
    for given, there in [
        (None, True), ("refused", False), (None, False), (None, False), ("refused", False),
        (None, False), ("ran", True), (None, True),
    ]:  # fmt: skip
        answer = given
        assert ("a" in discovery.find_available_hosts_and_slots()) == there


def test_a_node_is_found_while_the_discovery_adds_one() -> None:
    hosts = NodeHosts(RayHostDiscovery())

    class Name(str):
        def __eq__(self, _: object) -> bool:
            hosts._names["3"] = "c"
            return False

        __hash__ = str.__hash__

    hosts._names |= {"1": Name("a"), "2": "b"}
    assert hosts.node_of("b") == "2"


def test_executors_leave_their_settings_as_they_are() -> None:
    settings = SETTINGS()
    kept = vars(settings).copy()
    RayExecutor(settings, min_workers=1, reset_limit=3, elastic_timeout=5)
    ElasticJob(settings, least=1, most=None, cpus=1, gpus=0, override_discovery=True)
    assert vars(settings) == kept


def test_a_drained_node_is_left_out(nodes: Nodes) -> None:
    address = nodes.add(6)
    discovery = RayHostDiscovery()
    assert address in discovery.find_available_hosts_and_slots()
    # Ray ends a drained node as soon as nothing runs there.
    task = _wait.options(num_cpus=1, resources={f"node:{address}": 0.01}).remote()
    until(lambda: _uses(address), "the task is there")
    nodes.drain(address)
    assert [n["Alive"] for n in ray.nodes() if n["NodeManagerAddress"] == address] == [True]
    until(lambda: address not in discovery.find_available_hosts_and_slots(), "it is left out")
    assert len(discovery.find_available_hosts_and_slots()) == 2
    ray.cancel(task, force=True)
    nodes.remove(address)


@ray.remote
def _wait() -> None:
    time.sleep(SECONDS)


def _uses(address: str) -> bool:
    return ray.available_resources()[f"node:{address}"] < 1


def test_a_node_that_comes_back_is_another_host(nodes: Nodes) -> None:
    hosts = NodeHosts(RayHostDiscovery())
    address = nodes.add(5)
    first = hosts.find_available_hosts_and_slots()
    node = hosts.node_of(address)
    nodes.remove(address)
    assert address not in hosts.find_available_hosts_and_slots()
    nodes.add(5)
    again = hosts.find_available_hosts_and_slots()
    assert set(again) - set(first) == {f"{address}#2"}
    assert hosts.node_of(f"{address}#2") != node == hosts.node_of(address)
    nodes.remove(address)


def test_hosts_of_a_users_discovery(nodes: Nodes) -> None:
    address = nodes.add(10, **{"node:host-1": 1})
    (node,) = [n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == address]
    named = NodeHosts(FixedHosts({"host-1": 2}))
    assert named.find_available_hosts_and_slots() == {"host-1": 2}
    assert named.node_of("host-1") == node
    nodes.remove(address)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            {"stranger": 1},
            r"host stranger is no node of this Ray cluster, which has .*127\.0\.0\.2",
        ),
        ({"127.0.0.2": 0}, "host 127.0.0.2 has 0 slots, not one at least"),
    ],
)
def test_a_foreign_host_is_refused_at_once(nodes: Nodes, found: dict[str, int], text: str) -> None:
    settings = SETTINGS()
    settings.discovery = FixedHosts(found)
    executor = RayExecutor(settings, min_workers=1, override_discovery=False)
    executor.start()
    with pytest.raises(ValueError, match=text) as raised:
        executor.run(ray_bodies.place)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give either num_workers, or num_hosts, or min_workers"),
        ({"num_workers": 2, "num_hosts": 1}, "give either num_workers, or num_hosts"),
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1, not 0"),
        ({"num_hosts": 1, "num_workers_per_host": -1}, "num_workers_per_host must be a whole"),
        ({"num_workers": 1.5}, "num_workers must be a whole number of at least 1, not 1.5"),
        ({"num_workers": 1, "cpus_per_worker": -1}, "cpus_per_worker is -1"),
        ({"min_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker is 0"),
        ({"min_workers": 1, "num_workers": 1}, "Both `min_workers` and `num_workers` provided."),
        ({"min_workers": 1, "num_hosts": 1}, "Both `min_workers` and `num_hosts` provided."),
        ({"max_workers": 2}, "`max_workers` needs `min_workers`"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers=2 is below min_workers=3"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker is set, but use_gpu is False"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError) as raised:
        RayExecutor(SETTINGS(), **arguments)  # type: ignore[arg-type]
    assert str(raised.value).startswith(text) and "\n" not in str(raised.value)


def test_arguments_of_the_older_class() -> None:
    for nics in ({"lo"}, "lo"):
        settings = ElasticRayExecutor.create_settings(min_np=2, max_np=3, verbose=2, nics=nics)
        assert (settings.min_num_proc, settings.max_num_proc, settings.verbose) == (2, 3, 2)
        assert settings.variables()["HOROACC_NETWORK_INTERFACES"] == "lo"
    with pytest.raises(ValueError, match="gpus_per_slot is set, but use_gpu is False"):
        ElasticRayExecutor(settings, gpus_per_slot=1)
    with pytest.warns(UserWarning, match="ssh_str: no effect, Ray starts the processes"):
        SETTINGS(ssh_str="a key")


def test_what_an_elastic_job_refuses(nodes: Nodes) -> None:
    executor = RayExecutor(SETTINGS(), min_workers=1)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(ray_bodies.place)
    executor.start()
    with pytest.raises(NotImplementedError, match="no run_remote"):
        executor.run_remote(ray_bodies.place)
    with pytest.raises(NotImplementedError, match="no execute_single"):
        executor.execute_single(ray_bodies.hostname)
    executor.shutdown()


@pytest.mark.parametrize("name", ["horoacc.ray", "horovod.ray"])
def test_without_ray_one_line_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('none', name='ray')")
    script = f"import horoacc; horoacc.install_as_horovod(); import {name}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)}, timeout=60)  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: horoacc.ray needs Ray, which is not installed: pip install ray"
    )


def test_horovods_names() -> None:
    script = """
import horoacc; horoacc.install_as_horovod()
import horoacc.ray as ray
from horovod.ray import BaseHorovodWorker, ElasticRayExecutor, RayExecutor, ray_logger
from horovod.ray.elastic import ElasticRayExecutor as Older, RayHostDiscovery
from horovod.ray.elastic_v2 import RayHostDiscovery as Newer
from horovod.ray.runner import MiniSettings, RayExecutor as Runner
from horovod.ray.worker import BaseHorovodWorker as Worker
import horovod.ray.ray_logger
assert isinstance(RayExecutor.create_settings(), MiniSettings)
assert Runner is RayExecutor is ray.RayExecutor and Older is ElasticRayExecutor
assert Newer is RayHostDiscovery is ray.RayHostDiscovery and Worker is BaseHorovodWorker
assert horovod.ray.ray_logger is ray_logger
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
