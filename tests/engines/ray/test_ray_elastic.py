"""Elastic jobs of `RayExecutor`: processes, actors and nodes that die, are drained, and come."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
import ray_bodies
from ray_nodes import SECONDS, Nodes, until
from test_ray_fixed import EXAMPLE

from horoacc.elastic import FixedHosts
from horoacc.errors import RankFailed
from horoacc.ray import ElasticRayExecutor, RayExecutor

# The longest wait of docs/elastic.md. docs/ray.md has what was measured on a quiet machine.
NEXT_STEP_SECONDS = 3.0
HOSTS = ("127.0.0.2", "127.0.0.3")
Note = dict[str, Any]


class Job:
    """One elastic job of `ray_bodies.elastic_steps`, and what its ranks have noted."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.log = folder / "log"
        self.over = folder / "over"
        """Ends the job at the next step, if it is there."""
        settings = RayExecutor.create_settings(timeout_s=SECONDS)
        if "discovery" in arguments:
            settings.discovery = arguments.pop("discovery")
            arguments["override_discovery"] = False
        self._executor = RayExecutor(settings, **{"min_workers": 1, **arguments})
        self._acts: list[Callable[[], Any]] = []

    def notes(self) -> list[Note]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def sizes(self) -> set[int]:
        return {note["size"] for note in self.notes()}

    def wait_for(self, size: int, step: int = 0) -> Note:
        """Waits for a new step, of so many ranks; gives its note."""
        seen = len(self.notes())

        def there() -> Note | None:
            notes = [n for n in self.notes()[seen:] if n["step"] >= step and n["size"] == size]
            return notes[-1] if notes else None

        found: Note = until(there, f"step {step} of {size} ranks")
        return found

    def during(self, act: Callable[[], Any]) -> None:
        """Does something while it runs. What was given last ends last, and then the job is over."""
        self._acts.append(act)

    def run(self, callbacks: Sequence[Callable[[Any], Any]] = ()) -> list[Note]:
        """Runs it, and checks that each step was done once, by all its ranks alike."""
        self._executor.start()
        call = functools.partial(
            self._executor.run, ray_bodies.elastic_steps, [str(self.log), str(self.over)],
            callbacks=callbacks,
        )  # fmt: skip
        with ThreadPoolExecutor(1) as pool:  # Ray adds nodes in the main thread only
            running = pool.submit(call)
            try:
                for act in self._acts:
                    act()
            finally:
                self.over.touch()
            results: list[Note] = running.result(SECONDS)
        self._executor.shutdown()
        assert [result["rank"] for result in results] == list(range(len(results)))
        # The gradient of each step is 1 on every rank.
        assert {result["weight"] for result in results} == {-results[0]["steps"]}
        return results


def kill(pid: int) -> float:
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return now


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


DEATHS: dict[str, Callable[[Nodes, Note], float]] = {
    "rank": lambda _, note: kill(note["pid"]),
    "agent": lambda _, note: kill(note["agent"]),
    "actor": lambda _, note: kill(parent(note["agent"])),
    "node": lambda nodes, note: nodes.kill(note["host"]),
}


@pytest.mark.parametrize("what", DEATHS)
def test_a_death_and_the_next_step(nodes: Nodes, tmp_path: Path, what: str) -> None:
    extra = nodes.add(14)  # its own, which may be killed
    job = Job(tmp_path, min_workers=2, max_workers=6)
    died: list[float] = []

    def strike() -> None:
        job.wait_for(6, step=20)
        note = [n for n in job.notes() if n["host"] == extra][-1]
        died.append(DEATHS[what](nodes, note))
        job.wait_for(5 if what == "rank" else 4)

    job.during(strike)
    results = job.run()
    after = [n["time"] for n in job.notes() if n["time"] > died[0] and n["epoch"] > 1]
    assert min(after) - died[0] < NEXT_STEP_SECONDS
    assert {r["host"] for r in results} >= set(HOSTS)
    nodes.remove(extra)


def test_a_drained_node_is_left_without_an_error(
    nodes: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    extra = nodes.add(15)
    job = Job(tmp_path, max_workers=6)
    job.during(lambda: job.wait_for(6, step=20))
    job.during(lambda: nodes.drain(extra))
    job.during(lambda: job.wait_for(4))
    results = job.run()
    assert [result["size"] for result in results] == [4] * 4
    assert {result["host"] for result in results} == set(HOSTS)
    told = capfd.readouterr().err
    assert "epoch 2: 4 ranks" in told and "lost" not in told and "killed" not in told
    nodes.remove(extra)


def test_a_node_that_comes_is_used(nodes: Nodes, tmp_path: Path) -> None:
    job = Job(tmp_path, max_workers=5)
    job.during(lambda: job.wait_for(4, step=20))
    job.during(lambda: nodes.add(16))
    job.during(lambda: job.wait_for(5))
    results = job.run()
    assert [result["size"] for result in results] == [5] * 5
    assert job.sizes() == {4, 5}
    assert [result["host"] for result in results].count("127.0.0.16") == 1
    nodes.remove("127.0.0.16")


def test_callbacks_and_an_executable(nodes: Nodes, tmp_path: Path) -> None:
    heard: list[dict[str, int]] = []
    job = Job(tmp_path, max_workers=3)
    assert len(job.run([heard.append])) == 3
    assert len({told["started"] for told in heard if "started" in told}) == 3
    assert len([told for told in heard if "finished" in told]) == 1

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
    executor.start(ray_bodies.Counter, [100], {"step": 10}, {"EXTRA": "given"})
    assert executor.execute(lambda counter: counter.next()) == [110, 111]
    assert executor.execute(lambda _: os.environ["EXTRA"]) == ["given", "given"]
    executor.shutdown()


def test_the_older_class(nodes: Nodes, tmp_path: Path) -> None:
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=3)
    executor = ElasticRayExecutor(settings, env_vars={"EXTRA": "given"})
    executor.start()
    assert executor.run(lambda: os.environ["EXTRA"]) == ["given"] * 3
    places = executor.run(ray_bodies.place)
    assert [(place["rank"], place["size"]) for place in places] == [(0, 3), (1, 3), (2, 3)]


# Horovod's schedules: hosts by the time at which they are found, the first ones at the start, and
# the sizes that the job has had at its end.
SCHEDULES: dict[str, tuple[list[dict[str, int]], dict[str, Any], set[int], int]] = {
    "added and removed": (
        [{"host-1": 2}, {"host-1": 2, "host-2": 1, "host-3": 1}, {"host-2": 1}], {}, {2, 4, 1}, 1
    ),
    "removed and added": (
        [{"host-1": 2, "host-2": 1}, {"host-1": 2}, {"host-1": 2, "host-4": 1, "host-5": 1}],
        {}, {3, 2, 4}, 4,
    ),
    "removed and back": (
        [{"host-1": 2, "host-2": 1}, {"host-1": 2}, {"host-1": 2, "host-2": 1}],
        {"cooldown_range": [1, 1]}, {3, 2}, 3,
    ),
    "the most": ([{"host-1": 2}, {"host-1": 2, "host-4": 1}], {"max_workers": 2}, {2}, 2),
    "the fewest": (
        [{"host-1": 1}, {"host-1": 1, "host-4": 1, "host-5": 1},
         {"host-1": 1, "host-4": 1, "host-5": 1, "host-6": 1}],
        {"min_workers": 4, "max_workers": 4}, {4}, 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_hosts_of_a_discovery_come_and_go(nodes: Nodes, tmp_path: Path, name: str) -> None:
    schedule, arguments, sizes, last = SCHEDULES[name]
    extra = nodes.add(17, cpus=8, **{f"node:host-{n}": 1 for n in range(1, 7)})
    discovery = FixedHosts(schedule[0])
    job = Job(tmp_path, discovery=discovery, **arguments)
    least, most = arguments.get("min_workers", 1), arguments.get("max_workers", 99)

    def find(hosts: dict[str, int]) -> None:
        discovery.set(hosts)
        size = min(sum(hosts.values()), most)
        if size >= least:
            job.wait_for(size)

    for hosts in schedule:
        job.during(functools.partial(find, hosts))
    assert len(job.run()) == last and job.sizes() == sizes
    nodes.remove(extra)


def test_too_few_slots_are_told_at_once(nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
    settings = RayExecutor.create_settings()
    executor = RayExecutor(settings, min_workers=5, elastic_timeout=2)
    executor.start()
    with pytest.raises(RuntimeError, match=r"for 2 s the job has not had the ranks that it needs"):
        executor.run(ray_bodies.place)
    assert re.search(
        r"horoacc.ray: 5 workers of 1 CPUs do not fit on the hosts now \(127.0.0.[23]:2, "
        r"127.0.0.[23]:2\): waiting 2 s \(elastic_timeout\)", capfd.readouterr().err
    )  # fmt: skip


def test_errors_that_end_the_job(nodes: Nodes, tmp_path: Path) -> None:
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=4)
    executor.start()
    with pytest.raises(RankFailed, match=r"host .* ranks are there"):
        executor.run(os._exit, [3])
    with pytest.raises(LookupError, match=r"rank . found nothing"):
        executor.run(_all_raise)
    job = Job(tmp_path, min_workers=2, max_workers=4, reset_limit=1)
    job.during(lambda: kill(job.wait_for(4, step=10)["pid"]))
    job.during(lambda: kill(job.wait_for(3)["pid"]))
    with pytest.raises(RankFailed, match=r"number of resets .* exceeded limit: 1"):
        job.run()


def _all_raise() -> None:
    raise LookupError(f"rank {os.environ['HOROVOD_RANK']} found nothing")


def test_digits_with_a_death(nodes: Nodes) -> None:
    command = [
        sys.executable,
        str(EXAMPLE),
        "--elastic",
        "--workers",
        "4",
        "--address",
        nodes.address,
    ]
    example = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = ""
    assert example.stdout
    for line in example.stdout:
        told += line
        if "epoch 2: accuracy" in line:
            (victim, *_) = [one for one in nodes.left() if "courier_rank" in one]
            kill(int(victim.partition(":")[0]))
    assert example.wait(SECONDS) == 0, told
    found = re.findall(r"epoch 12: accuracy ([0-9.]+) %", told)
    assert found and float(found[0]) >= 98.5, told
    assert "lose no step" in told, told
    assert ray.is_initialized()
