"""A job under autotune on an engine: the program of tests/autotune, until its winner is stored."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from launcher_jobs import new_cache

PROGRAM = str(Path(__file__).resolve().parents[1] / "autotune" / "tuned.py")


def environ(folder: Path) -> dict[str, str]:
    """The variables of its ranks; all hosts of these tests share the folder."""
    new_cache(folder / "cache")
    return {
        "HOROACC_AUTOTUNE": "1", "HOROACC_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROACC_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "1",
        "HOROACC_AUTOTUNE_LOG": str(folder / "log.csv"),
        "HOROACC_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def expect_a_trial_and_a_winner(folder: Path, ranks: int, hosts: int) -> None:
    """The job tried something, on all ranks alike, and stored what it found under its shape."""
    with (folder / "log.csv").open(newline="") as stream:
        (trial,) = csv.DictReader(stream)
    assert trial["why"], trial
    (winner,) = (folder / "cache" / "autotune").glob("*.json")
    told = json.loads(winner.read_text())
    assert (told["topology"]["ranks"], told["topology"]["hosts"]) == (ranks, hosts), told
    first = {(folder / f"first.{rank}").read_text() for rank in range(ranks)}
    assert len(first) == 1, first
