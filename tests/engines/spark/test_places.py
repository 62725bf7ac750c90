"""Places of ranks, without Spark."""

from __future__ import annotations

import pytest

from horoacc.spark.places import Place, host_places


@pytest.mark.parametrize(
    ("tasks", "places"),
    [
        ([("a", 0)], [Place(0, 1, 0, 1, 0, 1)]),
        # Tasks come in any order; a host's ranks follow each other.
        (
            [("b", 1), ("a", 2), ("a", 0), ("b", 3)],
            [(2, 4, 0, 2, 1, 2), (1, 4, 1, 2, 0, 2), (0, 4, 0, 2, 0, 2), (3, 4, 1, 2, 1, 2)],
        ),
        # The second of a host with two has no neighbour on the other.
        (
            [("a", 1), ("b", 0), ("b", 2)],
            [(2, 3, 0, 1, 1, 2), (0, 3, 0, 2, 0, 2), (1, 3, 1, 2, 0, 1)],
        ),
    ],
)
def test_host_after_host(tasks: list[tuple[str, int]], places: list[tuple[int, ...]]) -> None:
    assert host_places(tasks) == places
