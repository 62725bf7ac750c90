"""The places of ranks whose hosts are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where a rank stands in its job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def host_places(tasks: Sequence[tuple[str, int]]) -> list[Place]:
    """Gives each task a rank, host after host.

    Args:
        tasks: The host of each, and a number by which the tasks of a host, and the hosts by
            their smallest, are in order.

    Returns:
        The places, in the order of `tasks`.
    """
    order = sorted(range(len(tasks)), key=lambda at: tasks[at][1])
    hosts: dict[str, list[int]] = {}
    for at in order:
        hosts.setdefault(tasks[at][0], []).append(at)
    found: dict[int, Place] = {}
    for here in hosts.values():
        for local, at in enumerate(here):
            row = [name for name, others in hosts.items() if len(others) > local]
            cross = row.index(tasks[at][0])
            found[at] = Place(len(found), len(tasks), local, len(here), cross, len(row))
    return [found[at] for at in range(len(tasks))]
