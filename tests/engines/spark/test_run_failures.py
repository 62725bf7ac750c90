"""What `horoacc.spark.run` says when something fails, and how soon."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import spark_bodies
import spark_cluster
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_cluster import SLOTS

import horoacc.spark
from horoacc.errors import RankFailed
from horoacc.launcher.elastic.channel import Channel
from horoacc.launcher.elastic.door import Door
from horoacc.launcher.output import Printer, RankStream
from horoacc.spark.fixed_job import FixedJob
from horoacc.spark.tasks import Task, Tasks

# From a kill to the error in the caller; docs/spark.md has what a quiet machine takes.
_ERROR_SECONDS = 10.0
ROOT = Path(__file__).parents[3]


def waiting(pids: Path, count: int) -> list[int]:
    """The processes of ranks that wait, once all do."""
    files = [pids / f"rank.{rank}" for rank in range(count)]
    spark_cluster.wait_until(
        lambda: all(file.exists() and file.read_text() for file in files), "ranks"
    )
    return [int(file.read_text().split()[0]) for file in files]


class Later:
    """Does something in a thread once ranks wait; knows when it did."""

    def __init__(self, pids: Path, count: int, do: Callable[[list[int]], None]) -> None:
        self.at = 0.0

        def run() -> None:
            found = waiting(pids, count)
            self.at = time.monotonic()
            do(found)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def took(self) -> float:
        self._thread.join(spark_cluster.SECONDS)
        return time.monotonic() - self.at


@pytest.mark.parametrize("how", ["raises", "exits", "is killed"])
def test_a_rank_fails(spark: SparkSession, how: str) -> None:
    since = time.monotonic()
    with pytest.raises((RankFailed, spark_bodies.Refusal)) as caught:
        horoacc.spark.run(spark_bodies.fails, (1, how), num_proc=2)
    assert time.monotonic() - since < spark_cluster.SECONDS
    text = str(caught.value)
    if how == "raises":
        assert text == "rank 1 refuses: no reason"
        assert "raised on rank 1" in caught.value.__notes__
        assert "in fails" in str(caught.value.__cause__)
        return
    assert isinstance(caught.value, RankFailed) and caught.value.culprit == 1
    ended = "exited with code 7; its last lines on stderr:\nthe last words"
    assert text.startswith(f"rank 1 {ended if how == 'exits' else 'was killed by SIGKILL'}")


def test_a_task_that_does_not_answer() -> None:
    """Its rank is given up once its time to end is over, and the job has an end."""

    class Silent:
        told: ClassVar[list[Any]] = []

        def tell(self, task: Task, **message: Any) -> None:
            self.told.append((task.index, message["kind"], message.get("number")))

        def stream(self, rank: int, name: str) -> RankStream:
            return RankStream(rank, name, Printer({}))

    silent = Silent()
    job = FixedJob(cast(Tasks, silent), 2, 0.01, {}, lambda *_: None)
    tasks = [Task(f"t{at}", at, "host", "127.0.0.1:1", 1, cast(Channel, None)) for at in range(2)]
    assert all(job.came(task) for task in tasks)
    job.heard(tasks[1], {"kind": "ended", "status": 1})
    spark_cluster.wait_until(lambda: job.on_time() or job.finished, "the job's end")
    assert job.failed == 1 and job.how.startswith("exited with code 1")
    signals = [(0, "signal", int(number)) for number in (signal.SIGTERM, signal.SIGKILL)]
    assert [one for one in silent.told if one[1] == "signal"][:2] == signals


def test_an_executor_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    def kill(pids: list[int]) -> None:
        os.kill(spark_cluster.executor_of(pids[1]), signal.SIGKILL)

    later = Later(tmp_path, 2, kill)
    with pytest.raises(RankFailed, match=r"rank 1 is gone with its Spark task \d on ") as caught:
        horoacc.spark.run(spark_bodies.waits, (str(tmp_path), 600.0), num_proc=2)
    assert caught.value.culprit == 1
    assert later.took() < _ERROR_SECONDS + 5.0  # the time of grace of the other rank


def test_a_python_worker_of_spark_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    def kill(pids: list[int]) -> None:
        os.kill(spark_cluster.parent_of(pids[0]), signal.SIGKILL)

    later = Later(tmp_path, 2, kill)
    with pytest.raises(RankFailed, match="rank 0 is gone with its Spark task"):
        horoacc.spark.run(spark_bodies.waits, (str(tmp_path), 600.0), num_proc=2)
    assert later.took() < _ERROR_SECONDS + 5.0


@pytest.mark.parametrize("run", [horoacc.spark.run, horoacc.spark.run_elastic])
def test_spark_cancels_the_job(
    spark: SparkSession, tmp_path: Path, run: Callable[..., Any]
) -> None:
    later = Later(tmp_path, 2, lambda _: spark.sparkContext.cancelAllJobs())
    with pytest.raises((RankFailed, RuntimeError), match="Spark"):
        run(spark_bodies.waits, (str(tmp_path), 600.0), num_proc=2)
    assert later.took() < 2 * _ERROR_SECONDS


def test_the_caller_is_interrupted(spark: SparkSession, tmp_path: Path) -> None:
    """As by Ctrl-C: ranks end, and what they have started."""
    main = threading.main_thread().ident
    assert main is not None
    later = Later(tmp_path, 2, lambda _: signal.pthread_kill(main, signal.SIGINT))
    # A shell has its background jobs ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            horoacc.spark.run(spark_bodies.waits, (str(tmp_path), 600.0), num_proc=2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert later.took() < _ERROR_SECONDS


def test_what_a_rank_has_started_ends_with_it(spark: SparkSession, tmp_path: Path) -> None:
    horoacc.spark.run(spark_bodies.waits, (str(tmp_path), 0.0), num_proc=2)
    started = [int((tmp_path / f"rank.{rank}").read_text().split()[1]) for rank in range(2)]
    assert not spark_cluster.alive(dict.fromkeys(started, ""))


@pytest.fixture
def busy(spark: SparkSession) -> Iterator[None]:
    """A Spark job that keeps a slot."""
    context = spark.sparkContext

    def keep(_: Any) -> list[int]:
        time.sleep(600)
        return []

    def run() -> None:
        context.setJobGroup("busy", "", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize(range(1), 1).mapPartitions(keep).collect()

    from pyspark import InheritableThread

    thread = InheritableThread(target=run)
    thread.start()
    tracker = context.statusTracker()
    spark_cluster.wait_until(lambda: bool(tracker.getJobIdsForGroup("busy")), "the busy job")
    yield
    context.cancelJobGroup("busy")
    thread.join(spark_cluster.SECONDS)


def test_slots_that_are_taken(spark: SparkSession, busy: None) -> None:
    text = rf"^Timed out waiting for Spark tasks to start: 0 of {SLOTS} are there after 6 s"
    since, told = time.monotonic(), io.StringIO()
    with pytest.raises(RuntimeError, match=text):
        horoacc.spark.run(spark_bodies.place, num_proc=SLOTS, start_timeout=6, stderr=told)
    assert time.monotonic() - since < 6 + _ERROR_SECONDS
    assert f"0 of {SLOTS} tasks have started after 5 s; Spark has up to 6 s" in told.getvalue()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"num_proc": SLOTS + 1},
            RuntimeError,
            f"{SLOTS + 1} ranks are too many: .* {SLOTS} slots",
        ),
        ({"num_proc": 0}, ValueError, "num_proc is 0; a job has 1 rank at least"),
        ({"use_mpi": True}, ValueError, "use_mpi: Spark starts the ranks, and no mpirun"),
        ({"executable": "/nonexistent"}, RankFailed, "cannot start '/nonexistent'"),
    ],
)
def test_bad_arguments(
    spark: SparkSession, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    since = time.monotonic()
    with pytest.raises(error, match=text):
        horoacc.spark.run(spark_bodies.place, **{"num_proc": 1, **arguments})
    assert time.monotonic() - since < _ERROR_SECONDS


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("spark.dynamicAllocation.enabled", "true", ValueError, "no barrier stage .* run_elastic"),
        ("HOROVOD_SPARK_START_TIMEOUT", "soon", ValueError, "START_TIMEOUT is 'soon', not seconds"),
    ],
)
def test_bad_settings(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, value: str,
    error: type[Exception], text: str,
) -> None:  # fmt: skip
    if name.startswith("HOROVOD"):
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(spark.sparkContext, "getConf", lambda: {name: value})
    with pytest.raises(error, match=text):
        horoacc.spark.run(spark_bodies.place, num_proc=1)


@pytest.mark.parametrize("java", [True, False])
def test_no_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, java: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    if not java:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    text = "make a SparkSession first" if java else "no Java to make one with"
    with pytest.raises(RuntimeError, match=f"^there is no SparkContext.*{text}"):
        horoacc.spark.run(spark_bodies.place)


def test_a_foreign_host(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address at which executors are to reach the driver is another machine's."""
    context = spark.sparkContext
    conf = context.getConf().set("spark.driver.host", "192.0.2.1")
    monkeypatch.setattr(context, "getConf", lambda: conf)
    with pytest.raises(RuntimeError, match=r"spark.driver.host is 192\.0\.2\.1, a foreign host"):
        horoacc.spark.run(spark_bodies.place, num_proc=1)


@pytest.mark.parametrize("run", [horoacc.spark.run, horoacc.spark.run_elastic])
def test_executors_that_do_not_reach_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    opened = Door.open

    def elsewhere(door: Door, *where: Any) -> None:
        opened(door, *where)
        door.address = "127.0.0.1:1"

    monkeypatch.setattr(Door, "open", elsewhere)
    text = "Spark's tasks ended without reaching this process: .* spark.driver.host"
    with pytest.raises(RuntimeError, match=text):
        run(spark_bodies.place, num_proc=2, start_timeout=spark_cluster.SECONDS)


def test_executors_without_horoacc(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(RuntimeError, match="Python of Spark's executors cannot import horoacc"):
        horoacc.spark.run(spark_bodies.place, num_proc=1)


def test_no_pyspark() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import horoacc.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ImportError: horoacc.spark needs Spark's Python package, .*: pip install pyspark",
        done.stderr.splitlines()[-1],
    )
