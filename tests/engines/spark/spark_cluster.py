"""Spark's `local-cluster`, its executors and the processes below them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from horoacc.launcher.processes import descendants

SECONDS = 60.0
SLOTS = 3
"""Executors, each with a slot."""
_RANK = ("courier_rank", "cluster_function", "horoacc.launcher.elastic.agent")


def session(master: str, folder: Path) -> SparkSession:
    """A session whose programs listen on loopback, and whose files are below a folder."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        # A test may kill an executor for each task.
        "spark.task.maxFailures": "8",
    }
    builder = SparkSession.builder.master(master)
    for name, text in settings.items():
        builder = builder.config(name, text)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def wait_until(
    done: Callable[[], bool], what: str | Callable[[], str], seconds: float = SECONDS
) -> None:
    due = time.monotonic() + seconds
    while not done():
        left = what() if callable(what) else what
        assert time.monotonic() < due, f"after {seconds:g} s the test still waits for {left}"
        time.sleep(0.02)


def wait_for_slots(spark: SparkSession, count: int) -> None:
    """Waits until so many executors are there: the driver counts as one."""
    scala = spark.sparkContext._jsc.sc()
    wait_until(
        lambda: scala.getExecutorMemoryStatus().size() > count, f"{count} executors of Spark"
    )


def below(pid: int) -> dict[int, str]:
    """The processes below another, and their command lines."""
    found = {}
    for one in descendants(pid):
        try:
            line = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        found[one] = line.decode(errors="replace")
    return found


def alive(processes: dict[int, str]) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}/cmdline").exists() and _line(pid)]


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()  # a zombie has none
    except OSError:
        return b""


def ranks() -> dict[int, str]:
    """Ranks and agents of jobs on this Spark."""
    return {
        pid: line for pid, line in below(os.getpid()).items() if any(name in line for name in _RANK)
    }


def executors() -> list[int]:
    """The executors' Java processes."""
    name = "CoarseGrainedExecutorBackend"
    return [pid for pid, line in below(os.getpid()).items() if name in line and "java" in line]


def executor_of(pid: int) -> int:
    """The executor below which a process is."""
    return next(one for one in executors() if pid in descendants(one))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def traces() -> set[str]:
    """Files that jobs make: segments of shared memory and folders."""
    places = [("/dev/shm", "horoacc*"), (os.environ.get("TMPDIR", "/tmp"), "horoacc-run-*")]
    return {str(path) for folder, names in places for path in Path(folder).glob(names)}
