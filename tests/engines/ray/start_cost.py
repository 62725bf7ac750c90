"""What starting costs beyond Ray's own start of actors; docs/ray.md has the figures.

    .venv-engines/bin/python tests/engines/ray/start_cost.py

Prints medians in seconds. Each round starts actors in a placement group on two nodes, a
`RayExecutor` of as many workers until all have met in `init()`, and an elastic job the same.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray_nodes import Nodes

from horoacc.ray import RayExecutor

ROUNDS, SIZES = 7, (2, 4)


@ray.remote
class Actor:
    def ready(self) -> None:
        return


def met() -> float:
    import horoacc as hvd

    hvd.init()
    return time.time()


def actors(size: int) -> float:
    begun = time.time()
    group = ray.util.placement_group([{"CPU": size // 2}] * 2, strategy="STRICT_SPREAD")
    group.wait(60)
    started = [
        Actor.options(
            num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, number % 2)
        ).remote()
        for number in range(size)
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
        ways: dict[str, Callable[[], float]] = {}
        for size in SIZES:
            each = {"num_hosts": 2, "num_workers_per_host": size // 2}
            most = {"min_workers": size, "max_workers": size}
            slots = {"cpus_per_worker": 4 // size}  # all CPUs, so that both nodes are used
            ways[f"{size} actors"] = functools.partial(actors, size)
            ways[f"{size} fixed"] = functools.partial(executor, **each)
            ways[f"{size} elastic"] = functools.partial(executor, **most, **slots)
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
