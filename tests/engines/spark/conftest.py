"""One Spark for all tests of this folder: a master and three workers with a slot each."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_cluster
from pyspark.sql import SparkSession
from spark_cluster import SLOTS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(folder: Path) -> Iterator[SparkSession]:
    java = shutil.which("java")
    assert java is not None, "make test-engines installs Java"
    # The digits are sklearn's, which tests/conftest.py hides from most tests.
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    absent = [path for path in paths if path.endswith("absent")]
    sys.path[:] = [path for path in sys.path if path not in absent]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path not in absent),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    session = spark_cluster.session(f"local-cluster[{SLOTS},1,1024]", folder)
    spark_cluster.wait_for_slots(session, SLOTS)
    yield session
    processes = spark_cluster.below(os.getpid())
    session.stop()
    session.sparkContext._gateway.shutdown()
    session.sparkContext._gateway.proc.stdin.close()
    session.sparkContext._gateway.proc.wait(30)
    spark_cluster.wait_until(lambda: not spark_cluster.alive(processes), "Spark's processes to end")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test all slots are free, and no rank, agent, segment or folder is left."""
    if "spark" not in request.fixturenames:
        yield
        return
    spark = request.getfixturevalue("spark")
    before = spark_cluster.traces()
    yield
    spark_cluster.wait_until(
        lambda: not spark_cluster.ranks() and not spark_cluster.traces() - before,
        lambda: f"{spark_cluster.ranks()}, {spark_cluster.traces() - before} to be gone",
    )
    spark_cluster.wait_for_slots(spark, SLOTS)
