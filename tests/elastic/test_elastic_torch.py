"""Elastic training with torch: NumPy replays the log of memberships, and the weights match."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic, pids
from launcher_jobs import new_cache
from random_deaths import killed
from regression import check
from replays import Adam, Adasum, Lbfgs, Sgd


def train(elastic: Elastic, *flags: str, **options: Any) -> str:
    (elastic.folder / "options").write_text(json.dumps(options))
    return elastic.run(*flags, program=str(WORKER.with_name("torch_worker.py"))).err


RULES: dict[str, Callable[[], Sgd]] = {
    "sgd": Sgd, "adam": lambda: Adam(of_keras=False), "adasum": Adasum, "lbfgs": Lbfgs,
}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "dead", "place", "optimizer"),
    [
        (2, [0], "begin", "adam"),
        (2, [0], "applied", "sgd"),
        (3, [2], "step", "adam"),
        (4, [0, 2], "step", "sgd"),
        (4, [0, 2], "applied", "adam"),
    ],
)
def test_no_step_is_lost_without_a_commit(
    elastic: Elastic, size: int, dead: list[int], place: str, optimizer: str
) -> None:
    elastic.plan = [
        {"at": place, "batch": 5, "rank": rank, "do": "kill", "together": True} for rank in dead
    ]
    told = train(
        elastic, "-np", str(size), "--min-np", "1", "--failures-per-host", "1",
        optimizer=optimizer, commit_every=1000,
    )  # fmt: skip
    assert "and lose no step" in told and "last commit" not in told
    check(elastic, RULES[optimizer]())
    assert elastic.repeated() == []
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert min(sizes.values()) == size - len(dead)
    assert pids(elastic.steps(), max(sizes)) < pids(elastic.steps(), 1)


def test_a_resize_takes_the_winner_of_its_topology(elastic: Elastic) -> None:
    """A first job leaves winners, a second one finds others in their place."""
    cache = new_cache(elastic.folder / "cache") / "autotune"
    flags = ("-np", "3", "--min-np", "2", "--failures-per-host", "1", "--autotune",
             "--autotune-bayes-opt-max-samples", "0", "--cache-dir", str(cache.parent),
             "--autotune-warmup-samples")  # fmt: skip
    elastic.batches, elastic.seconds = 44, 0.0
    elastic.plan = [{"at": "step", "batch": 22, "rank": 1, "do": "kill"}]
    train(elastic, *flags, "0", commit_every=1000)
    check(elastic, Sgd())
    winners = {}
    for file in cache.iterdir():
        told = json.loads(file.read_text())
        ranks = told["topology"]["ranks"]
        winners[ranks] = [ranks << 20, ranks << 10]
        values = dict(zip(("fusion_threshold", "last_arriver_bytes"), winners[ranks], strict=True))
        file.write_text(json.dumps(told | values))
    assert sorted(winners) == [2, 3]
    for left in ("log", "happened.0"):
        (elastic.folder / left).unlink()
    train(elastic, *flags, "9", commit_every=1000)
    check(elastic, Sgd())
    used = {(line["size"], tuple(line["tuned"][:2])) for line in elastic.steps()}
    assert used == {(size, tuple(values)) for size, values in winners.items()}


def test_ranks_that_come_get_the_state(elastic: Elastic) -> None:
    elastic.batches = 16
    elastic.plan = [
        {"at": "step", "batch": batch, "rank": rank, "do": "kill"}
        for batch, rank in ((4, 0), (9, 1))
    ]
    told = train(
        elastic, "-np", "2", "--min-np", "1", optimizer="adam", commit_every=1000,
        waits={"7": 2, "13": 2}, scaler=True,
    )  # fmt: skip
    check(elastic, RULES["adam"]())
    assert elastic.repeated() == [] and told.count("1 of them new") == 2
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert [sizes[epoch] for epoch in sorted(sizes)] == [2, 1, 2, 1, 2]


@pytest.mark.parametrize("steps", [1, 5])
def test_a_scheduler_that_is_in_no_state(elastic: Elastic, steps: int) -> None:
    """After so many steps of a new epoch each rank has a rate of its own: rank 0's counts.

    After a change behind the fifth the ranks part until the eighth, and then all have its weights.
    """
    elastic.plan = [{"at": "begin", "batch": 4, "rank": 2, "do": "kill"}]
    elastic.batches = 16
    told = train(elastic, "-np", "3", "--min-np", "2", "--failures-per-host", "1",
                 commit_every=1000, reschedules=steps)  # fmt: skip
    warned = "rank 1 had other values of lr than rank 0 after all ranks had taken its values"
    assert told.count(warned) == 1 and "put the scheduler" in told
    if steps == 1:
        check(elastic, Sgd())
    parted: dict[int, set[tuple[float, ...]]] = {}
    for line in elastic.steps():
        if line["epoch"] == 2:
            parted.setdefault(line["batch"], set()).add(tuple(line["weight"]))
    assert [b for b, found in sorted(parted.items()) if len(found) > 1] == (
        [9, 10] if steps == 5 else []
    )
    assert max(parted) == elastic.batches


def test_a_warm_spare_comes_in_at_once(elastic: Elastic) -> None:
    elastic.batches, elastic.seconds = 150, 0.05
    elastic.plan = [{"at": "begin", "batch": 100, "rank": 0, "do": "kill"}]
    told = train(
        elastic, "-np", "2", "--min-np", "1", "--max-np", "2", "--warm-spares", "1",
        commit_every=1000,
    )  # fmt: skip
    check(elastic, Sgd())
    assert elastic.repeated() == []
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert sizes == {1: 2, 2: 2}, "the spare was not there in time, or not taken"
    assert "epoch 2: 2 ranks, 1 of them new; killed by SIGKILL" in told


@pytest.mark.parametrize(
    ("options", "place", "why", "rule"),
    [
        ({"passes": 2, "late_zero": True}, "begin", "a step takes several backward passes", "sgd"),
        ({"op": "Adasum"}, "begin", "the state has no distributed optimizer, or several", "adasum"),
        (
            {"optimizer": "lbfgs"},
            "begin",
            "a closure may have failed in the middle of a step",
            "lbfgs",
        ),
        ({"compression": "fp16", "late_zero": True}, "begin", "", "sgd"),
        ({"averages": True, "late_zero": True}, "step", "the error left allreduce.loss", "sgd"),
    ],
)
def test_what_auto_takes(
    elastic: Elastic, options: dict[str, Any], place: str, why: str, rule: str
) -> None:
    """Rank 0 dies: what is replayed of the others may depend on which of them leads."""
    elastic.plan = [{"at": place, "batch": 6, "rank": 0, "do": "kill"}]
    told = train(elastic, "-np", "3", "--min-np", "2", "--failures-per-host", "1",
                 commit_every=2, **options)  # fmt: skip
    assert (f"go back to their last commit: {why}" if why else "and lose no step") in told
    narrow = "compression" in options
    check(elastic, RULES[rule](), 0.02 if narrow else 1e-9, options.get("passes", 1))
    assert elastic.repeated() == ([5] if why else [])


def test_commit_is_what_was_asked_for(elastic: Elastic) -> None:
    elastic.plan = [{"at": "begin", "batch": 6, "rank": 0, "do": "kill"}]
    told = train(elastic, "-np", "3", "--min-np", "2", "--failures-per-host", "1",
                 "--recover", "commit", commit_every=4)  # fmt: skip
    assert "go back to their last commit: recover='commit' was asked for" in told
    check(elastic, Sgd())
    assert elastic.repeated() == [5]


def test_deaths_at_any_moment(elastic: Elastic) -> None:
    pauses = [0.0, 0.05, 0.3, 1.0]
    killed(elastic, "torch_worker.py", 4, 25, pauses, {"commit_every": 10**9})
    check(elastic, Sgd(), tolerance=1e-6)
    assert elastic.repeated() == []
