"""Where the workers of an executor go: a placement group of Ray's."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# A cluster that has the resources gives them sooner. Later ones come from an autoscaler.
_AT_ONCE_SECONDS = 1.0


@dataclass(frozen=True)
class Demand:
    """What workers need: either `workers` wherever there is room, or as many on each of `hosts`."""

    workers: int
    hosts: int | None
    cpus: float
    gpus: float
    """Of each worker."""

    def resources(self, count: int = 1) -> dict[str, float]:
        """What so many workers need."""
        needed = {"CPU": self.cpus * count, "GPU": self.gpus * count}
        return {name: amount for name, amount in needed.items() if amount}

    def bundles(self) -> list[dict[str, float]]:
        """A bundle for each worker, or for each host."""
        if self.hosts is None:
            return [self.resources() for _ in range(self.workers)]
        return [self.resources(self.workers // self.hosts) for _ in range(self.hosts)]

    def text(self) -> str:
        """For messages."""
        where = f" on {self.hosts} nodes" if self.hosts else ""
        return f"{self.workers} workers{where} of {self.resources()} each"


class Placement:
    """The placement group of some workers, its own or the one that this process runs in."""

    def __init__(self, demand: Demand, inherit: bool, seconds: float) -> None:
        """Waits until the workers have their resources.

        Args:
            demand: What they need.
            inherit: Whether to take this process's group, if there is one.
            seconds: How long to wait for a group of their own.

        Raises:
            ValueError: This process's group is too small.
            TimeoutError: The cluster has not had the resources for so long.
        """
        self.demand = demand
        current = get_current_placement_group() if inherit else None
        self.created = current is None
        if current is not None:
            self.group: PlacementGroup | None = current
            _check_room(current, demand)
            return
        strategy = "PACK" if demand.hosts is None else "STRICT_SPREAD"
        self.group = ray.util.placement_group(demand.bundles(), strategy=strategy)
        try:
            self._wait(seconds)
        except BaseException:
            self.remove()
            raise

    def strategy(self, worker: int) -> PlacementGroupSchedulingStrategy:
        """How Ray places a worker, by its number."""
        bundle = -1  # any
        if self.created:
            demand = self.demand
            bundle = worker if demand.hosts is None else worker // (demand.workers // demand.hosts)
        return PlacementGroupSchedulingStrategy(
            self.group,
            placement_group_bundle_index=bundle,
            placement_group_capture_child_tasks=False,
        )

    def remove(self) -> None:
        """Gives the resources back, unless the group was here before."""
        if self.created and self.group is not None:
            ray.util.remove_placement_group(self.group)
        self.group = None

    def _wait(self, seconds: float) -> None:
        assert self.group is not None
        until = time.monotonic() + seconds
        if self.group.wait(min(_AT_ONCE_SECONDS, seconds)):
            return
        short = (
            f"the Ray cluster has no room for {self.demand.text()}: {len(ray.nodes())} nodes have "
            f"{_amounts(ray.cluster_resources())}, and {_amounts(ray.available_resources())} free"
        )
        if (left := until - time.monotonic()) > 0:
            print(f"horoacc.ray: {short}; waiting {left:.0f} s", file=sys.stderr, flush=True)
        if not self.group.wait(max(0.0, until - time.monotonic())):
            raise TimeoutError(f"{short}, for {seconds:g} s (placement_group_timeout_s)")


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))


def _check_room(group: PlacementGroup, demand: Demand) -> None:
    """Raises ValueError at once if a group, which cannot grow, has too little room."""
    needed = demand.resources()
    room = 0
    for bundle in group.bundle_specs:
        fits = [int(bundle.get(name, 0) / amount + 1e-9) for name, amount in needed.items()]
        room += min(fits, default=demand.workers)
    if room < demand.workers:
        raise ValueError(
            f"the current placement group has room for {room} of {demand.text()}; "
            "use_current_placement_group=False takes another"
        )
