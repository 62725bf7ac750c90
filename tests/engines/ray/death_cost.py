"""The time from a death to the next completed step; docs/ray.md has the figures.

    .venv-engines/bin/python tests/engines/ray/death_cost.py

Four ranks on two nodes. Ranks are killed one after the other in one job; actors and raylets
each in a job of their own, on a node of their own.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path

import test_ray_failures
from ray_nodes import SECONDS, Nodes, until
from test_ray_elastic import DEATHS, Job, Note

from horoacc.ray import RayExecutor

RANKS, HOSTS = 8, 3


def next_step(job: Job, died: float) -> float:
    """The time from a death to the first step of the next epoch."""
    before = max(note["epoch"] for note in job.notes() if note["time"] <= died)

    def after() -> list[float]:
        notes = [n for n in job.notes() if n["time"] > died and n["epoch"] > before]
        return [note["time"] - died for note in notes]

    return min(until(after, "the next step"))


def deaths(nodes: Nodes, what: str, count: int, host: str) -> list[float]:
    """One job, in which so many die on a host."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), min_workers=2, max_workers=4, cooldown_range=[1, 2])

        def victims() -> list[Note]:
            epoch = max(note["epoch"] for note in job.notes())
            notes = [n for n in job.notes() if n["host"] == host and n["epoch"] == epoch]
            return notes if notes and notes[-1]["size"] == 4 else []

        def strike() -> None:
            for _ in range(count):
                job.wait_for(4)
                time.sleep(0.5)
                note = until(victims, "four ranks")[-1]
                found.append(next_step(job, DEATHS[what](nodes, note)))

        job.during(strike)
        job.run()
    return found


def fixed(nodes: Nodes, what: str, address: str) -> float:
    """A job of a fixed number of workers, until its error."""
    with tempfile.TemporaryDirectory() as folder:
        made = RayExecutor(RayExecutor.create_settings(timeout_s=SECONDS), num_hosts=2)
        made.start()
        places = {place["host"]: place for place in made.run(test_ray_failures.ray_bodies.place)}
        act = {
            "actor": lambda: test_ray_failures.kill(places[address]["pid"]),
            "node": lambda: nodes.kill(address),
        }[what]
        _, seconds = test_ray_failures.during(made, Path(folder), act)
        made.shutdown()
        return seconds


def tell(what: str, seconds: list[float]) -> None:
    print(f"{what}: median {statistics.median(seconds):.2f}, worst {max(seconds):.2f} s "
          f"of {len(seconds)}", flush=True)  # fmt: skip


def main() -> None:
    nodes = Nodes()
    try:
        nodes.add(2)
        host = nodes.add(3)
        nodes.connect()
        with contextlib.redirect_stderr(io.StringIO()):
            tell("elastic, a rank", deaths(nodes, "rank", RANKS, host))
            actors = [s for _ in range(HOSTS) for s in deaths(nodes, "actor", 1, host)]
            tell("elastic, an actor", actors)
            tell("fixed, an actor", [fixed(nodes, "actor", host) for _ in range(HOSTS)])
            raylets: dict[str, list[float]] = {"elastic": [], "fixed": []}
            for number in range(2 * HOSTS):
                nodes.remove(host)
                host = nodes.add(20 + number)
                if number % 2:
                    raylets["fixed"].append(fixed(nodes, "node", host))
                else:
                    raylets["elastic"] += deaths(nodes, "node", 1, host)
            for kind, seconds in raylets.items():
                tell(f"{kind}, a raylet", seconds)
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
