"""Workers with a fixed number that die, raise exceptions, or lose their node or their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray_bodies
from ray_nodes import SECONDS, Nodes, until

from horoacc.errors import HorovodInternalError, RankFailed
from horoacc.ray import RayExecutor

# A busy machine; docs/ray.md has what was measured.
DEATH_SECONDS = 5.0


def started(**arguments: Any) -> RayExecutor:
    made = RayExecutor(RayExecutor.create_settings(timeout_s=SECONDS), **arguments)
    made.start()
    return made


def during(made: RayExecutor, tmp_path: Path, act: Callable[[], float]) -> tuple[RankFailed, float]:
    """Does something while all ranks work; gives the error, and how long after that it came."""
    begun = tmp_path / "begun"
    at: list[float] = []

    def wait() -> None:
        until(begun.exists, "ranks work")
        at.append(act())

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(RankFailed) as raised:
        made.run(ray_bodies.in_turns, [str(begun)])
    came = time.time()
    thread.join(SECONDS)
    return raised.value, came - at[0]


def kill(pid: int) -> float:
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    return now


def test_a_killed_actor_is_named(nodes: Nodes, tmp_path: Path) -> None:
    made = started(num_hosts=2, num_workers_per_host=2)
    places = made.run(ray_bodies.place)
    error, seconds = during(made, tmp_path, lambda: kill(places[2]["pid"]))
    assert error.culprit == 2 and f"rank 2 on {places[2]['host']} died: " in str(error)
    assert "\n" not in str(error) and seconds < DEATH_SECONDS
    with pytest.raises(RankFailed, match=r"rank 2 on .* died: ") as raised:
        made.run(ray_bodies.place, callbacks=[print])
    assert raised.value.culprit == 2
    made.shutdown()


def test_a_killed_node_is_named(nodes: Nodes, tmp_path: Path) -> None:
    address = nodes.add(8)
    made = started(num_hosts=3)
    places = made.run(ray_bodies.place)
    (rank,) = [place["rank"] for place in places if place["host"] == address]
    error, seconds = during(made, tmp_path, lambda: nodes.kill(address))
    assert error.culprit == rank and f"rank {rank} on {address} died: " in str(error)
    assert seconds < DEATH_SECONDS
    made.shutdown()
    nodes.remove(address)


def test_an_exception_of_one_rank_ends_the_wait_of_the_others(nodes: Nodes) -> None:
    made = started(num_workers=4)
    begun = time.monotonic()
    with pytest.raises(LookupError, match="rank 2 found nothing"):
        made.run(ray_bodies.raised_by, [2])
    assert time.monotonic() - begun < 2 * DEATH_SECONDS
    # The workers are free again, and meet as a new job.
    assert made.execute(lambda _: __import__("horoacc").shutdown()) == [None] * 4
    made.shutdown()


def test_an_exception_of_all_ranks_leaves_the_job_as_it_is(nodes: Nodes) -> None:
    made = started(num_workers=2)
    made.run(ray_bodies.place)
    with pytest.raises(ZeroDivisionError):
        made.execute(lambda _: 1 // 0)
    time.sleep(0.5)
    assert [place["size"] for place in made.run(ray_bodies.place)] == [2, 2]
    made.shutdown()


def test_an_error_of_a_collective_is_horovods(nodes: Nodes) -> None:
    def differ() -> None:
        import numpy as np

        import horoacc as hvd

        hvd.init()
        hvd.allreduce(np.ones(2 + hvd.rank()), name="odd")

    made = started(num_workers=2)
    with pytest.raises(HorovodInternalError, match="odd"):
        made.run(differ)
    made.shutdown()


DRIVER = """
import sys
import ray, ray_bodies
from horoacc.ray import RayExecutor
ray.init(sys.argv[1], log_to_driver=False)
size = {"num_workers": 3} if sys.argv[2] == "fixed" else {"min_workers": 3}
executor = RayExecutor(RayExecutor.create_settings(), **size)
executor.start()
executor.run(ray_bodies.in_turns, [sys.argv[3]])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("kind", ["fixed", "elastic"])
def test_a_driver_that_ends_leaves_nothing(
    nodes: Nodes, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, nodes.address, kind, str(begun)])
    try:
        until(begun.exists, "ranks work")
        assert nodes.left()
        driver.send_signal(number)
        assert driver.wait(SECONDS) != 0
    finally:
        driver.kill()
