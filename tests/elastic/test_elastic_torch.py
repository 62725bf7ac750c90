"""Elastic training with torch: NumPy replays the log of memberships, and the weights match."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from elastic_jobs import WORKER, Elastic, pids

FEATURES, PER_RANK = 6, 4
INPUTS = torch.randn(4096, FEATURES, generator=torch.Generator().manual_seed(1),
                     dtype=torch.float64).numpy()  # fmt: skip
TARGETS = INPUTS @ np.arange(1.0, FEATURES + 1)


def train(elastic: Elastic, *flags: str, **options: Any) -> str:
    (elastic.folder / "options").write_text(json.dumps(options))
    return elastic.run(*flags, program=str(WORKER.with_name("torch_worker.py"))).err


def check(elastic: Elastic, replay: str = "", tolerance: float = 1e-9, passes: int = 1) -> None:
    steps = elastic.timeline()
    weights = np.array(next(
        line["weight"] for line in elastic.lines_of("begin") if line["rank"] == 0
    ))  # fmt: skip
    moment, square = np.zeros(FEATURES), np.zeros(FEATURES)
    for number, step in enumerate(steps, 1):
        # No step is lost, and none is done twice.
        assert np.allclose(step["before"], weights, atol=tolerance, rtol=0), step["batch"]
        grads = []
        for rank in range(step["size"]):
            first = (step["batch"] * 97 + rank * PER_RANK) % (4096 - PER_RANK)
            x, t = INPUTS[first : first + PER_RANK], TARGETS[first : first + PER_RANK]
            # Each pass has the mean of its part; the passes are added up.
            grads.append(passes * 2 * (x @ weights - t) @ x / PER_RANK)
        grad = np.mean(grads, axis=0)
        if replay == "sgd":
            moment = 0.9 * moment + grad if number > 1 else grad
            weights = weights - 0.02 * moment
        elif replay == "adam":
            moment = 0.9 * moment + 0.1 * grad
            square = 0.999 * square + 0.001 * grad**2
            scaled = np.sqrt(square / (1 - 0.999**number)) + 1e-8
            weights = weights - 0.05 * (moment / (1 - 0.9**number)) / scaled
        else:
            weights = np.array(step["weight"])
        assert np.allclose(step["weight"], weights, atol=tolerance, rtol=0), step["batch"]
    ends = elastic.lines_of("end")
    assert ends and all(end["weight"] == steps[-1]["weight"] for end in ends)


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
    elastic.plan = [{"at": place, "batch": 5, "rank": rank, "do": "kill"} for rank in dead]
    told = train(
        elastic, "-np", str(size), "--min-np", "1", "--failures-per-host", "1",
        optimizer=optimizer, commit_every=1000,
    )  # fmt: skip
    assert "and lose no step" in told and "last commit" not in told
    check(elastic, optimizer)
    assert elastic.repeated() == []
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert min(sizes.values()) == size - len(dead)
    assert pids(elastic.steps(), max(sizes)) < pids(elastic.steps(), 1)


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
    check(elastic, "adam")
    assert elastic.repeated() == [] and told.count("1 of them new") == 2
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert [sizes[epoch] for epoch in sorted(sizes)] == [2, 1, 2, 1, 2]


def test_a_warm_spare_comes_in_at_once(elastic: Elastic) -> None:
    elastic.batches, elastic.seconds = 150, 0.05
    elastic.plan = [{"at": "begin", "batch": 100, "rank": 0, "do": "kill"}]
    told = train(
        elastic, "-np", "2", "--min-np", "1", "--max-np", "2", "--warm-spares", "1",
        commit_every=1000,
    )  # fmt: skip
    check(elastic, "sgd")
    assert elastic.repeated() == []
    sizes = {line["epoch"]: line["size"] for line in elastic.steps()}
    assert sizes == {1: 2, 2: 2}, "the spare was not there in time, or not taken"
    assert "epoch 2: 2 ranks, 1 of them new; killed by SIGKILL" in told


@pytest.mark.parametrize(
    ("options", "place", "why", "replay"),
    [
        ({"passes": 2, "late_zero": True}, "begin", "a step takes several backward passes", "sgd"),
        ({"op": "Adasum"}, "begin", "the state has no distributed optimizer, or several", ""),
        ({"optimizer": "lbfgs"}, "begin", "a closure may have failed in the middle of a step", ""),
        ({"compression": "fp16", "late_zero": True}, "begin", "", "sgd"),
        ({"averages": True, "late_zero": True}, "step", "the error left allreduce.loss", "sgd"),
    ],
)
def test_what_auto_takes(
    elastic: Elastic, options: dict[str, Any], place: str, why: str, replay: str
) -> None:
    elastic.plan = [{"at": place, "batch": 6, "rank": 1, "do": "kill"}]
    told = train(elastic, "-np", "3", "--min-np", "2", "--failures-per-host", "1",
                 commit_every=2, **options)  # fmt: skip
    assert (f"go back to their last commit: {why}" if why else "and lose no step") in told
    narrow = "compression" in options
    check(elastic, replay, 0.2 if narrow else 1e-9, options.get("passes", 1))


def test_commit_is_what_was_asked_for(elastic: Elastic) -> None:
    elastic.plan = [{"at": "begin", "batch": 6, "rank": 0, "do": "kill"}]
    told = train(elastic, "-np", "3", "--min-np", "2", "--failures-per-host", "1",
                 "--recover", "commit", commit_every=4)  # fmt: skip
    assert "go back to their last commit: recover='commit' was asked for" in told
    check(elastic, "sgd")
    assert elastic.repeated() == [5]


def test_deaths_at_any_moment(elastic: Elastic) -> None:
    """Ranks die wherever they are: importing, meeting, sharing the state, in a step, waiting."""
    elastic.batches, elastic.seconds = 100_000, 0.002
    flight = elastic.folder / "flight"
    (elastic.folder / "options").write_text(json.dumps({"commit_every": 10**9, "ends": True}))
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    draw = random.Random(seed)
    arguments = elastic.arguments(
        "-np", "4", "--min-np", "2", "--failures-per-host", "10000", "--flight-dir", str(flight),
        program=str(WORKER.with_name("torch_worker.py")),
    )  # fmt: skip
    job = elastic.job.start(*arguments)
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    # Rank 0 of the first epochs is killed as any other; one must live, or the state is gone.
    (spared,) = (line["pid"] for line in elastic.lines_of("begin") if line["rank"] == 1)
    for _ in range(25):
        time.sleep(draw.choice([0.0, 0.05, 0.3, 1.0]) * draw.random())
        workers = [pid for pid in elastic.workers() if pid != spared]
        for pid in draw.sample(workers, min(len(workers), draw.choice([1, 1, 2]))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (elastic.folder / "end").touch()
    _, err = job.communicate(timeout=90)
    assert job.returncode == 0, err.decode()
    elastic.batches = max(line["batch"] for line in elastic.steps())
    check(elastic, "sgd", tolerance=1e-6)
    assert elastic.repeated() == []
    elastic.job.expect_nothing_left()
