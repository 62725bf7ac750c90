"""Places of ranks that a cluster starts, and where they meet."""

from __future__ import annotations

import socket

import pytest

from horoacc.launcher.places import MeetingPoint, Place, host_places, meeting_variables


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        (["a"], [Place(0, 1, 0, 1, 0, 1)]),
        # A host's ranks follow each other.
        (
            ["a", "b", "a", "b"],
            [(0, 4, 0, 2, 0, 2), (2, 4, 0, 2, 1, 2), (1, 4, 1, 2, 0, 2), (3, 4, 1, 2, 1, 2)],
        ),
        # The second of a host with two has no neighbour on the other.
        (["b", "a", "b"], [(0, 3, 0, 2, 0, 2), (2, 3, 0, 1, 1, 2), (1, 3, 1, 2, 0, 1)]),
    ],
)
def test_host_after_host(hosts: list[str], places: list[tuple[int, ...]]) -> None:
    assert host_places(hosts) == places


def test_variables_of_a_place() -> None:
    found = Place(2, 3, 0, 1, 1, 2).variables()
    assert [found[f"HOROACC_{name}"] for name in ("RANK", "CROSS_RANK", "CROSS_SIZE")] == [*"212"]
    assert (found["HOROVOD_CROSS_RANK"], found["WORLD_SIZE"]) == ("1", "3")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_where_rank_0_is_met(host: str) -> None:
    point = MeetingPoint(host)
    found = meeting_variables(point.address, point.master_port)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == (host, str(point.master_port))
    assert found["HOROACC_MASTER"] == f"{host}:{point.master_port}"
    port = int(found["HOROACC_RENDEZVOUS"].rpartition(":")[2])
    with socket.socket(fileno=point.lend()) as listener:
        point.close()
        socket.create_connection((host, port), 5).close()
        listener.accept()[0].close()
