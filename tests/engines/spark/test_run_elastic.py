"""`horoacc.spark.run_elastic` on a real Spark: killed ranks and executors, tasks that come late."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import spark_bodies
import spark_cluster
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import horoacc.spark
from horoacc.errors import RankFailed

pytestmark = pytest.mark.timeout(300)
# docs/elastic.md and docs/spark.md have the figures of a quiet machine.
_NEXT_STEP_SECONDS = 3.0


class Line(NamedTuple):
    """A step of a rank."""

    time: float
    pid: int
    rank: int
    size: int
    step: int


def lines(log: Path) -> list[Line]:
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        words = line.split()
        if len(words) == len(Line._fields):
            found.append(Line(float(words[0]), *map(int, words[1:])))
    return found


def after_steps(
    log: Path, step: int, do: Callable[[Line], object]
) -> tuple[threading.Thread, list[float]]:
    """Does something to a rank 1 that has come to a step; gives the time when it did."""
    at: list[float] = []

    def reached() -> list[Line]:
        return [line for line in lines(log) if line.rank == 1 and line.step >= step]

    def run() -> None:
        spark_cluster.wait_until(lambda: bool(reached()), f"step {step}")
        at.append(time.time())
        do(reached()[-1])

    thread = threading.Thread(target=run)
    thread.start()
    return thread, at


def test_results_by_rank_and_their_output(spark: SparkSession) -> None:
    out, err = io.StringIO(), io.StringIO()
    results = horoacc.spark.run_elastic(
        spark_bodies.place, num_proc=2, min_num_proc=2, max_num_proc=2,
        env={"OF_THE_TEST": "given"}, stdout=out, stderr=err,
    )  # fmt: skip
    # Each task is a host of its own.
    assert [result["place"] for result in results] == [(0, 2, 0, 1, 2), (1, 2, 0, 1, 2)]
    assert [result["variable"] for result in results] == ["given"] * 2
    assert sorted(out.getvalue().splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(err.getvalue().splitlines()) == ["[0] err 0", "[1] err 1"]


@pytest.mark.parametrize("victim", ["rank", "agent", "executor"])
def test_one_is_killed(spark: SparkSession, tmp_path: Path, victim: str) -> None:
    """The others take the next step at once, and a new rank comes in."""
    log = tmp_path / "log"

    def kill(line: Line) -> None:
        own = line.pid
        victims = {
            "rank": lambda: own,
            "agent": lambda: spark_cluster.parent_of(own),
            "executor": lambda: spark_cluster.executor_of(own),
        }
        os.kill(victims[victim](), signal.SIGKILL)

    thread, at = after_steps(log, 10, kill)
    results = horoacc.spark.run_elastic(
        spark_bodies.trains, (str(log), 40, 3), num_proc=3, min_num_proc=2, stderr=io.StringIO()
    )
    thread.join(spark_cluster.SECONDS)
    assert [result[:2] for result in results] == [(rank, 3) for rank in range(3)]
    told = lines(log)
    after = [line.time - at[0] for line in told if line.time > at[0] and line.size == 2]
    assert after and min(after) < _NEXT_STEP_SECONDS
    # No step is lost, and none is applied twice by the same process.
    steps = [(line.pid, line.step) for line in told]
    assert len(set(steps)) == len(steps)
    assert {line.step for line in told} == set(range(1, results[0][2] + 1))
    back = min(line.time for line in told if line.time > at[0] + min(after) and line.size == 3)
    print(f"{victim}: next step after {min(after):.2f} s, all ranks after {back - at[0]:.1f} s")


def test_a_rank_raises_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("1.5", "0.9"):
        (tmp_path / name).touch()
    results = horoacc.spark.run_elastic(
        spark_bodies.trains, (str(tmp_path / "log"), 20, 2, str(tmp_path)),
        num_proc=2, min_num_proc=1, stderr=io.StringIO(),
    )  # fmt: skip
    assert [result[:2] for result in results] == [(0, 2), (1, 2)]
    assert not (tmp_path / "1.5").exists() and not (tmp_path / "0.9").exists()


def test_ranks_that_always_raise(spark: SparkSession) -> None:
    """Nothing is started in a task after its third failure, and then there is none."""
    with pytest.raises((RankFailed, spark_bodies.Refusal)) as caught:
        horoacc.spark.run_elastic(
            spark_bodies.fails, (0, "raises"), num_proc=1, stderr=io.StringIO()
        )
    assert "rank 0 refuses: no reason" in str(caught.value)


def test_the_ranks_may_change_so_often(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    thread, _ = after_steps(log, 5, lambda line: os.kill(line.pid, signal.SIGKILL))
    with pytest.raises(RankFailed, match="number of resets during elastic job exceeded limit: 1"):
        horoacc.spark.run_elastic(
            spark_bodies.trains, (str(log), 10_000), num_proc=3, min_num_proc=2, reset_limit=1,
            stderr=io.StringIO(),
        )  # fmt: skip
    thread.join(spark_cluster.SECONDS)


def test_a_task_that_gets_its_slot_late(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has room for two tasks first, and for the third once another job has ended."""
    context = spark.sparkContext
    log, go = tmp_path / "log", tmp_path / "go"

    def busy(_: Any) -> list[int]:
        due = time.monotonic() + 100
        while time.monotonic() < due and not go.exists():
            time.sleep(0.1)
        return []

    other = InheritableThread(
        target=lambda: context.parallelize(range(1), 1).mapPartitions(busy).collect()
    )
    other.start()
    spark_cluster.wait_until(
        lambda: bool(context.statusTracker().getActiveStageIds()), "the other job"
    )
    time.sleep(1.0)  # its task has the slot
    thread, _ = after_steps(log, 10, lambda _: go.touch())
    results = horoacc.spark.run_elastic(
        spark_bodies.trains, (str(log), 30, 3), num_proc=2, max_num_proc=3, stderr=io.StringIO()
    )
    other.join(spark_cluster.SECONDS)
    thread.join(spark_cluster.SECONDS)
    assert [result[:2] for result in results] == [(rank, 3) for rank in range(3)]
    assert lines(log)[0].size == 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_proc": 1, "min_num_proc": 2}, ValueError, "are not in this order"),
        ({"num_proc": 9, "min_num_proc": 9}, RuntimeError, "9 ranks are too many: .* 3 slots"),
    ],
)
def test_bad_arguments(
    spark: SparkSession, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        horoacc.spark.run_elastic(spark_bodies.place, **arguments)
