"""`RayExecutor` with a fixed number of workers, on two nodes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray_bodies
import tuned_job
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray_nodes import SECONDS, Nodes

from horoacc.ray import BaseHorovodWorker, RayExecutor, ray_logger

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "ray_digits.py"
# By the arguments' names, what makes a job of four workers.
SHAPES = [{"num_workers": 4}, {"num_hosts": 2, "num_workers_per_host": 2}]


def executor(**arguments: Any) -> RayExecutor:
    settings = RayExecutor.create_settings(timeout_s=SECONDS, placement_group_timeout_s=SECONDS)
    return RayExecutor(settings, **arguments)


@pytest.fixture(params=SHAPES, ids=lambda shape: "-".join(shape))
def started(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[RayExecutor]:
    made = executor(**request.param)
    made.start()
    yield made
    made.shutdown()


@pytest.mark.quickest
@pytest.mark.parametrize("flags", [["--nodes", "2"]], ids=" ".join)
def test_digits(nodes: Nodes, flags: list[str]) -> None:
    command = [sys.executable, str(EXAMPLE), "--workers", "4", "--address", nodes.address, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"accuracy ([0-9.]+) %, 4 ranks", done.stdout)
    assert found and float(found[1]) >= 98.5, done.stdout


def test_places_and_results_by_rank(started: RayExecutor) -> None:
    places = started.run(ray_bodies.place)
    assert [place["rank"] for place in places] == [0, 1, 2, 3]
    assert {place["size"] for place in places} == {4}
    assert [place["local_rank"] for place in places] == [0, 1, 0, 1]
    assert {place["local_size"] for place in places} == {2}
    assert [place["cross"] for place in places] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert places[0]["host"] == places[1]["host"] != places[2]["host"] == places[3]["host"]
    # The same processes, in a job of their own after the first is over.
    started.execute(lambda _: __import__("horoacc").shutdown())
    again = started.run(ray_bodies.place)
    assert [place["pid"] for place in again] == [place["pid"] for place in places]


def test_workers_tune(nodes: Nodes, tmp_path: Path) -> None:
    made = executor(num_workers=2)
    made.start(extra_env_vars=tuned_job.environ(tmp_path))
    made.run(ray_bodies.program, [tuned_job.PROGRAM, str(tmp_path)])
    made.shutdown()
    tuned_job.expect_a_trial_and_a_winner(tmp_path, ranks=2, hosts=1)


def test_ways_to_call(started: RayExecutor) -> None:
    assert started.run(ray_bodies.scaled, [10], {"offset": 1}) == [1, 11, 21, 31]
    assert ray.get(started.run_remote(ray_bodies.scaled, args=[2])) == [0, 2, 4, 6]
    assert started.execute(lambda executable: executable) == [None] * 4
    assert started.execute_single(lambda _: os.environ["HOROVOD_RANK"]) == "0"
    assert set(started.execute(ray_bodies.hostname)) == {socket.gethostname()}
    assert sorted(started.execute(ray_bodies.trained)) == [0, 0, 1, 1]


def test_variables_of_the_driver(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HOROVOD_CYCLE_TIME": "3", "HOROACC_LOG_LEVEL": "error", "HOROACC_RANK": "7",
             "HOROACC_ELASTIC": "1", "HOROACC_START_TIMEOUT": "1"}  # fmt: skip
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    made = executor(num_workers=1)
    made.start(extra_env_vars={"HOROACC_LOG_LEVEL": "info"})
    (told,) = made.execute(lambda _: dict(os.environ))
    made.shutdown()
    assert [told.get(name) for name in given] == ["3", "info", "0", None, f"{SECONDS:g}"]


def test_an_executable_lives_between_calls(nodes: Nodes) -> None:
    made = executor(num_workers=2)
    made.start(ray_bodies.Counter, [100], {"step": 10}, {"EXTRA": "given"})
    assert made.execute(lambda counter: counter.next()) == [110, 111]
    assert made.execute(lambda counter: counter.next()) == [120, 121]
    assert made.execute_single(lambda counter: counter.value) == 120
    assert made.execute(lambda _: os.environ["EXTRA"]) == ["given"] * 2
    made.shutdown()
    made.shutdown()
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        made.run(ray_bodies.place)


@pytest.mark.parametrize(("chief_only", "ranks"), [(True, {0}), (False, {0, 1})])
def test_callbacks_hear_what_ranks_log(nodes: Nodes, chief_only: bool, ranks: set[int]) -> None:
    def tell() -> None:
        for step in range(3):
            told = {"rank": int(os.environ["HOROVOD_RANK"]), "step": step}
            ray_logger.log(told, chief_only=chief_only)

    heard: list[dict[str, int]] = []
    made = executor(num_workers=2)
    made.start()
    made.run(tell, callbacks=[heard.append])
    assert sorted((told["rank"], told["step"]) for told in heard) == [
        (rank, step) for rank in sorted(ranks) for step in range(3)
    ]

    def refuse(_: object) -> None:
        raise ArithmeticError("not this")

    with pytest.raises(ArithmeticError, match="not this"):
        made.run(tell, callbacks=[refuse])
    made.shutdown()


def test_gpus_of_a_node_are_seen_by_all_its_ranks(nodes: Nodes) -> None:
    address = nodes.add(9, cpus=4, gpus=4)
    try:
        for shape in ({"num_workers": 4}, {"num_hosts": 1, "num_workers_per_host": 4}):
            made = executor(use_gpu=True, **shape)
            made.start()
            told = made.execute(
                lambda _: (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HOROVOD_LOCAL_RANK"])
            )
            made.shutdown()
            assert {seen for seen, _ in told} == {told[0][0]}
            assert sorted(told[0][0].split(",")) == ["0", "1", "2", "3"]
            assert [local for _, local in told] == ["0", "1", "2", "3"]
    finally:
        nodes.remove(address)


def test_the_placement_group_of_an_actor_is_used(nodes: Nodes) -> None:
    @ray.remote
    class Driver:
        def run(self, workers: int, inherit: bool = True, cpus: float = 1) -> list[int]:
            made = RayExecutor(
                RayExecutor.create_settings(), num_workers=workers, cpus_per_worker=cpus,
                use_current_placement_group=inherit,
            )  # fmt: skip
            made.start()
            found = made.execute(ray_bodies.trained)
            made.shutdown()
            return found

    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="PACK")
    assert group.wait(SECONDS)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    driver = Driver.options(num_cpus=0, scheduling_strategy=strategy).remote()
    assert sorted(ray.get(driver.run.remote(3), timeout=SECONDS)) in ([0, 0, 1], [0, 1, 2])
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"has room for 3 of 4 workers of {'CPU': 1} each"):
        ray.get(driver.run.remote(4), timeout=SECONDS)
    with pytest.raises(ValueError, match=r"has room for 30 of 31 workers of {'CPU': 0.1} each"):
        ray.get(driver.run.remote(31, cpus=0.1), timeout=SECONDS)
    assert time.monotonic() - started < 5.0
    # There is one CPU beside the group.
    assert ray.get(driver.run.remote(1, False), timeout=SECONDS) == [0]
    ray.kill(driver)
    ray.util.remove_placement_group(group)


@pytest.mark.parametrize("shape", [{"num_workers": 5}, {"num_hosts": 3}], ids=str)
def test_a_cluster_without_room(
    nodes: Nodes, shape: dict[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=3.0)
    made = RayExecutor(settings, **shape)
    with pytest.raises(TimeoutError, match=r"the Ray cluster has no room for .* 4 CPUs") as raised:
        made.start()
    assert "\n" not in str(raised.value)
    (line,) = [one for one in capfd.readouterr().err.splitlines() if "horoacc.ray: " in one]
    assert "has no room" in line and line.endswith("waiting 2 s")
    made.shutdown()


CLIENT = """
import os, signal, sys, threading, time
import ray, ray_bodies
from horoacc.ray import RayExecutor
ray.init(sys.argv[1])
executor = RayExecutor(RayExecutor.create_settings(), num_workers=3)
executor.start()
assert sorted(executor.execute(ray_bodies.trained)) in ([0, 0, 1], [0, 1, 2])
assert len(ray.get(executor.run_remote(ray_bodies.trained))) == 3
try:
    executor.run(ray_bodies.raised_by, [1])
except LookupError as error:
    assert "rank 1 found nothing" in str(error)
    print("all right")
threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    executor.execute(lambda _: time.sleep(600))
except KeyboardInterrupt:
    began = time.monotonic()
    executor.shutdown()
    print("ended" if time.monotonic() - began < 20 else "late")
"""


@pytest.mark.timeout(200)
def test_a_job_of_rays_client(nodes: Nodes) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", CLIENT, nodes.client], env=environ,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        # Now and then the process that Ray starts for a client ends before it does anything.
        if "Starting Ray client server failed" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    # A busy cluster also has its autoscaler print here.
    own = [line for line in done.stdout.splitlines() if "(autoscaler" not in line]
    assert own == ["all right", "ended"], done.stdout + done.stderr


def test_a_worker_by_itself(nodes: Nodes) -> None:
    class Own(BaseHorovodWorker):
        pass

    kept = dict(os.environ)
    assert Own().hostname() == socket.gethostname()
    os.environ.clear()
    os.environ.update(kept)
    actor = ray.remote(BaseHorovodWorker).options(num_cpus=0).remote()
    actor.update_env_vars.remote({"TEST": 1123})
    assert ray.get(actor.env_vars.remote())["TEST"] == "1123"
    ray.kill(actor)
