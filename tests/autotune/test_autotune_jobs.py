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
    assert [(tmp_path / f"first.{rank}").read_text() for rank in (0, 1)] == ["70000 8192 0 0"] * 2
    if mode != "tcp":
        return
    train(job, tmp_path, *MODES[mode])
    without = {(tmp_path / f"first.{rank}").read_text() for rank in (0, 1)}
    assert len(without) == 1 and without != {"70000 8192 0 0"}


# As srun has the ranks of a step.
SRUN = (
    "export SLURM_JOB_ID=$$ SLURM_STEP_ID=1 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 "
    "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0 HOROACC_SECRET=of$$; "
    'for r in 0 1; do SLURM_PROCID=$r SLURM_LOCALID=$r "$@" & all="$all $!"; done; '
    "for each in $all; do wait $each || exit 1; done"
)
STARTS = {
    "horoaccrun": (),
    "torchrun": (sys.executable, "-m", "torch.distributed.run", "--standalone",
                 "--nproc-per-node", "2"),
    "srun": ("sh", "-c", SRUN, "srun", sys.executable),
}  # fmt: skip
ONE_HOST = r"(?:fusion_threshold|last_arriver_bytes) [\d.]+ [MK]iB"
BETWEEN_HOSTS = r"algorithm (?:ring|as set)"


@pytest.mark.parametrize(
    ("start", "hosts"),
    [*((start, "") for start in STARTS), ("horoaccrun", "1+1")],
)
def test_what_was_tried_is_told(job: Job, tmp_path: Path, start: str, hosts: str) -> None:
    (tmp_path / "ask").touch()
    log = tmp_path / "log.csv"
    of_a_rank = environ(tmp_path) | {
        "HOROACC_AUTOTUNE": "1", "HOROACC_AUTOTUNE_LOG": str(log),
        "HOROACC_AUTOTUNE_WARMUP_SAMPLES": "0", "HOROACC_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
    }  # fmt: skip
    if start == "horoaccrun":
        more = {"HOROACC_SIMULATED_HOSTS": hosts, "HOROACC_REDUCTION": "fast"} if hosts else {}
        train(job, tmp_path, "--tcp", **of_a_rank | more)
    else:
        job.starter = STARTS[start]
        job.run(TUNED, str(tmp_path), **of_a_rank)
    changed = BETWEEN_HOSTS if hosts else ONE_HOST
    told = (tmp_path / "explain").read_text()
    state = r"\w[\w' ]*: fusion_threshold [\d.]+ [MK]iB, last_arriver_bytes [\d.]+ [MK]iB"
    assert re.search(rf"Autotune {state}.* \(.*\).*; 1 trials so far, [01] kept\.", told), told
    (tried,) = re.findall(
        rf"Autotune tried {changed} against {changed}: "
        r"(?:steps took [\d.]+ of the time \[[\d.]+, [\d.]+\], )?(\w[^;]*); (kept|went back)\.",
        told,
    )
    (row,) = rows(log)
    assert tried == (row["why"], "kept" if row["kept"] == "1" else "went back")
    assert row["against_last_arriver_bytes"] == "262144" and row["against_algorithm"] == ""
    assert (row["algorithm"] == "ring") == bool(hosts)
    top = (tmp_path / "top").read_text()
    assert re.search(rf"autotune {state}.*; 1 trials so far", top), top
    assert re.search(rf"autotune tried {changed} against .*{re.escape(row['why'])}", top), top
    (trial,) = json.loads((tmp_path / "json").read_text())["autotune"]["trials"]
    assert trial["why"] == row["why"]
    numbers = json.loads((tmp_path / "metrics").read_text())
    assert numbers["horoacc_autotune_trials_total"] == 1
    assert numbers["horoacc_autotune_kept_total"] == int(row["kept"])
    assert numbers['horoacc_tuned_bytes{setting="fusion_threshold"}'] > 0


def test_ranks_that_differ_are_told_at_once(job: Job) -> None:
    program = "import horoacc as hvd\ntry: hvd.init()\nexcept Exception as error: print(error)"
    line = f'[ "{RANK}" = 1 ] && export HOROACC_AUTOTUNE=1; exec "$0" -c "$1"'
    result = job.run("--tcp", "-np", "2", "sh", "-c", line, sys.executable, program)
    for rank in (0, 1):
        (told,) = result.of(rank)
        assert "setting 'autotune' differs: rank 0 has '0', rank 1 has '1'" in told
