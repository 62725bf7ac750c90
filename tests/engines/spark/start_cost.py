"""What starting costs beyond a barrier stage of empty tasks; docs/spark.md has the figures.

    PATH=.venv-engines/bin:$PATH .venv-engines/bin/python tests/engines/spark/start_cost.py

Prints medians in seconds, of rounds in turn: from a call in the driver until all ranks have met in
`init()`, for `run` and `run_elastic`, and until all tasks of a stage run.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import spark_cluster

import horoacc.spark

ROUNDS, SIZES, SLOTS = 9, (2, 4), 4


def now(*_: object) -> list[float]:
    return [time.time()]


def met() -> float:
    import horoacc as hvd

    hvd.init()
    return time.time()


def met_elastic() -> float:
    import horoacc as hvd

    hvd.init()
    return hvd.elastic.run(lambda _: time.time())(hvd.elastic.ObjectState())


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="horoacc-spark-"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_WORKER_DIR"] = str(folder / "work")
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    spark = spark_cluster.session(f"local-cluster[{SLOTS},1,1024]", folder)
    spark_cluster.wait_for_slots(spark, SLOTS)

    def stage(size: int) -> list[float]:
        tasks = spark.sparkContext.parallelize(range(size), size).barrier()
        return tasks.mapPartitions(now).collect()

    ways: dict[str, Callable[[], list[float]]] = {}
    for size in SIZES:
        ways[f"{size} tasks"] = functools.partial(stage, size)
        ways[f"{size} fixed"] = functools.partial(horoacc.spark.run, met, num_proc=size)
        numbers = {"num_proc": size, "min_num_proc": size, "max_num_proc": size}
        ways[f"{size} elastic"] = functools.partial(
            horoacc.spark.run_elastic, met_elastic, **numbers
        )
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            begun = time.time()
            taken = max(way()) - begun
            time.sleep(1.0)
            if number:  # the first round reads files
                seconds[name].append(taken)
    for name, taken_all in seconds.items():
        print(f"{name}: {statistics.median(taken_all):.2f} ({min(taken_all):.2f} to "
              f"{max(taken_all):.2f})")  # fmt: skip
    spark.stop()


if __name__ == "__main__":
    main()
