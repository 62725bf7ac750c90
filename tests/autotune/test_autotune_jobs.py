"""`--autotune` in real jobs: its flags, its memory, what `explain` says, and ranks that differ."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_jobs import MODES, RANK, Job, Result, new_cache

TUNED = str(Path(__file__).with_name("tuned.py"))
AT_ONCE = ("--autotune", "--autotune-warmup-samples", "0", "--autotune-bayes-opt-max-samples")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    new_cache(tmp_path / "cache")
    with Job() as made:
        yield made
        (tmp_path / "end").touch()
        made.wait_until(lambda: not made.alive(), "the end")


def environ(folder: Path) -> dict[str, str]:
    return {
        "HOROACC_CACHE_DIR": str(folder / "cache"), "HOROACC_LOOK_DIR": str(folder / "look"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def train(job: Job, folder: Path, *flags: str, **variables: str) -> Result:
    command = [sys.executable, TUNED, str(folder)]
    return job.run(*flags, "-np", "2", *command, **environ(folder) | variables)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("mode", MODES)
def test_the_winner_is_used_by_the_next_job_at_once(job: Job, tmp_path: Path, mode: str) -> None:
    train(job, tmp_path, *MODES[mode], *AT_ONCE, "0")  # without a trial the job's own settings win
    (winner,) = (tmp_path / "cache" / "autotune").iterdir()
    told = json.loads(winner.read_text())
    assert told["topology"] == {"ranks": 2, "on this host": 2, "hosts": 1}
    winner.write_text(json.dumps(told | {"fusion_threshold": 70000, "last_arriver_bytes": 8192}))
    train(job, tmp_path, *MODES[mode], HOROVOD_AUTOTUNE="1")  # the end is there already
    assert [(tmp_path / f"first.{rank}").read_text() for rank in (0, 1)] == ["70000 8192"] * 2
    if mode != "tcp":
        return
    train(job, tmp_path, *MODES[mode])
    without = {(tmp_path / f"first.{rank}").read_text() for rank in (0, 1)}
    assert len(without) == 1 and without != {"70000 8192"}


def test_explain_tells_what_was_tried(job: Job, tmp_path: Path) -> None:
    (tmp_path / "go_on").touch()
    log = tmp_path / "log.csv"
    command = [sys.executable, TUNED, str(tmp_path)]
    running = job.start(
        "--tcp", "-np", "2", *AT_ONCE, "1", "--autotune-log-file", str(log), *command,
        **environ(tmp_path),
    )  # fmt: skip
    job.wait_until(lambda: log.exists() and rows(log), "a trial")
    told = job.run("explain", **environ(tmp_path)).out
    state = r"Autotune \w[\w' ]*: fusion_threshold [\d.]+ [MK]iB, last_arriver_bytes [\d.]+ [MK]iB "
    assert re.search(state + r"\(.*\); [12] trials so far, [0-2] kept\.", told), told
    tried = re.findall(
        r"Autotune tried (\w+) [\d.]+ [MK]iB against (\w+) [\d.]+ [MK]iB: "
        r"(?:steps took [\d.]+ of the time \[[\d.]+, [\d.]+\], )?(\w[^;]*); (kept|went back)\.",
        told,
    )
    assert tried and all(new == old for new, old, *_ in tried), told
    assert rows(log)[0]["against_last_arriver_bytes"] == "262144"
    for row, (_, _, why, end) in zip(rows(log), tried, strict=False):
        assert row["why"] == why and (row["kept"] == "1") == (end == "kept")
    (tmp_path / "end").touch()
    assert running.wait(60) == 0


def test_ranks_that_differ_are_told_at_once(job: Job) -> None:
    program = "import horoacc as hvd\ntry: hvd.init()\nexcept Exception as error: print(error)"
    line = f'[ "{RANK}" = 1 ] && export HOROACC_AUTOTUNE=1; exec "$0" -c "$1"'
    result = job.run("--tcp", "-np", "2", "sh", "-c", line, sys.executable, program)
    for rank in (0, 1):
        (told,) = result.of(rank)
        assert "setting 'autotune' differs: rank 0 has '0', rank 1 has '1'" in told
