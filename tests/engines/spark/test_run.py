"""`horoacc.spark.run` on a real Spark."""

from __future__ import annotations

import io
import re
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spark_bodies
import spark_cluster
import tuned_job
from pyspark.sql import SparkSession
from spark_cluster import SLOTS

import horoacc.spark
from horoacc.spark.tasks import Tasks

ROOT = Path(__file__).parents[3]


@pytest.mark.quickest
def test_results_by_rank_and_their_output(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROACC_LOG_LEVEL", "error")
    monkeypatch.setenv("OF_THE_TEST", "not this one")  # only settings go along by themselves
    out, err = io.StringIO(), io.StringIO()
    results = horoacc.spark.run(
        spark_bodies.place, (2.0,), {"name": "all"}, num_proc=2, env={"OF_THE_TEST": "given"},
        stdout=out, stderr=err,
    )  # fmt: skip
    assert [result.pop("place") for result in results] == [(0, 2, 0, 2, 1), (1, 2, 1, 2, 1)]
    assert len({result.pop("parent") for result in results}) == 2
    assert results == 2 * [
        {
            "summed": [2.0] * 3, "name": "all", "variable": "given", "horoacc": "error",
            "master": "127.0.0.1",
        }
    ]  # fmt: skip
    assert sorted(out.getvalue().splitlines()) == ["[0] out 0", "[1] out 1"]
    # A line that Spark still looks for room comes on a machine that is busy.
    lines = sorted(line for line in err.getvalue().splitlines() if line.startswith("["))
    assert lines == ["[0] err 0", "[1] err 1"]


def test_as_many_ranks_as_spark_has_slots(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OF_THE_TEST", raising=False)
    results = horoacc.spark.run(spark_bodies.place, prefix_output_with_timestamp=True)
    assert [result["place"][:2] for result in results] == [(rank, SLOTS) for rank in range(SLOTS)]
    assert {result["variable"] for result in results} == {None}
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == SLOTS
    assert all(re.fullmatch(r"\[\d\] \d{4}-\d\d-\d\d [\d:.]{12} out \d", one) for one in lines)


def test_ranks_tune(spark: SparkSession, tmp_path: Path) -> None:
    words, env = (tuned_job.PROGRAM, str(tmp_path)), tuned_job.environ(tmp_path)
    horoacc.spark.run(spark_bodies.program, words, num_proc=2, env=env)
    tuned_job.expect_a_trial_and_a_winner(tmp_path, ranks=2, hosts=1)


def test_torch_finds_the_ranks(spark: SparkSession) -> None:
    assert horoacc.spark.run(spark_bodies.torch_distributed, num_proc=3) == [3.0] * 3


@pytest.mark.parametrize("run", [horoacc.spark.run, horoacc.spark.run_elastic])
def test_results_longer_than_a_message(spark: SparkSession, run: Callable[..., Any]) -> None:
    size = 40 << 20
    results = run(spark_bodies.large, (size,), num_proc=2)
    assert results == [bytes([rank]) * size for rank in range(2)]


@pytest.mark.parametrize("run", [horoacc.spark.run, horoacc.spark.run_elastic])
def test_no_message_has_the_secret(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """The connections to tasks encrypt nothing."""
    told: list[tuple[str, str]] = []
    tell = Tasks.tell

    def noted(tasks: Tasks, task: Any, **message: Any) -> None:
        told.append((tasks.secret, repr(message)))
        tell(tasks, task, **message)

    monkeypatch.setattr(Tasks, "tell", noted)
    assert len(run(spark_bodies.place, num_proc=2)) == 2
    assert len(told) == 2  # each task starts a rank, or an agent
    assert not [text for secret, text in told if secret in text or "HOROACC_SECRET" in text]


def test_another_python(spark: SparkSession, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nOF_THE_TEST=wrapped exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (result,) = horoacc.spark.run(spark_bodies.place, num_proc=1, executable=str(python))
    assert result["variable"] == "wrapped"


def test_the_digits(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """The example, with the accuracy of `make demo`."""
    example = runpy.run_path(str(ROOT / "examples" / "spark_digits.py"))
    assert min(horoacc.spark.run(example["train"], num_proc=2)) > 0.98
    assert re.search(r"accuracy 9[89]\.\d\d %", capfd.readouterr().out)


def test_horovods_names(spark: SparkSession) -> None:
    """In another process, whose imports are not those of the other tests."""
    import subprocess

    program = ROOT / "tests" / "engines" / "spark" / "named_horovod.py"
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines()[-1:] == ["[('0.28.1', 2), ('0.28.1', 2)]"], done.stderr[-2000:]


def test_the_start_costs_little(spark: SparkSession) -> None:
    """docs/spark.md has the figure of a quiet machine; this one runs other tests, too."""

    def bare() -> float:
        since = time.monotonic()
        slices = spark.sparkContext.parallelize(range(2), 2).barrier()
        slices.mapPartitions(lambda _: [1]).collect()
        return time.monotonic() - since

    def ours() -> float:
        since = time.monotonic()
        horoacc.spark.run(spark_bodies.place, num_proc=2, stdout=io.StringIO())
        return time.monotonic() - since

    extra = statistics.median(ours() for _ in range(5)) - statistics.median(
        bare() for _ in range(5)
    )
    print(f"beyond Spark's own start and end: {extra:.2f} s", file=sys.stderr)
    assert extra < 2.0


def test_the_slots_are_free_at_once(spark: SparkSession) -> None:
    for _ in range(3):
        horoacc.spark.run(spark_bodies.place, num_proc=SLOTS, stdout=io.StringIO())
        since = time.monotonic()
        spark.sparkContext.parallelize(range(SLOTS), SLOTS).count()
        assert time.monotonic() - since < spark_cluster.SECONDS / 10
