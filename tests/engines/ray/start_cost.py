"""What starting costs beyond Ray's own start of actors; docs/ray.md has the figures.

    .venv-engines/bin/python tests/engines/ray/start_cost.py

Prints medians in seconds. Each round starts four actors in a placement group, a `RayExecutor` of
four workers until all have met in `init()`, and an elastic job of four ranks on two nodes the same.
"""

from __future__ import annotations

import statistics
import time

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray_nodes import Nodes

from horoacc.ray import RayExecutor

ROUNDS = 7


@ray.remote
class Actor:
    def ready(self) -> None:
        return


def met() -> float:
    import horoacc as hvd

    hvd.init()
    return time.time()


def actors() -> float:
    begun = time.time()
    group = ray.util.placement_group([{"CPU": 1}] * 4, strategy="PACK")
    group.wait(60)
    started = [
        Actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
        for bundle in range(4)
    ]
    ray.get([actor.ready.remote() for actor in started])
    seconds = time.time() - begun
    ray.util.remove_placement_group(group)
    return seconds


def executor(**arguments: int) -> float:
    made = RayExecutor(RayExecutor.create_settings(), **arguments)  # type: ignore[arg-type]
    begun = time.time()
    made.start()
    seconds = max(made.run(met)) - begun
    made.shutdown()
    return seconds


def main() -> None:
    nodes = Nodes()
    try:
        for last in (2, 3):
            nodes.add(last)
        nodes.connect()
        ways = {
            "actors": actors,
            "fixed": lambda: executor(num_workers=4),
            "elastic": lambda: executor(min_workers=4, max_workers=4),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, way in ways.items():
                taken = way()
                nodes.expect_nothing_left()
                time.sleep(2.0)  # for Ray to start idle workers again
                if number:  # the first round reads files
                    seconds[name].append(taken)
        for name, taken_all in seconds.items():
            print(f"{name}: {statistics.median(taken_all):.2f} ({min(taken_all):.2f} to "
                  f"{max(taken_all):.2f})")  # fmt: skip
    finally:
        nodes.close()


if __name__ == "__main__":
    main()
