"""Elastic training with TensorFlow: NumPy replays the log of memberships."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic
from random_deaths import killed
from regression import check
from replays import Adam, Sgd

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def train(elastic: Elastic, *flags: str, **options: Any) -> str:
    legacy = {"TF_USE_LEGACY_KERAS": "1"} if options.pop("legacy", False) else {}
    (elastic.folder / "options").write_text(json.dumps(options))
    program = str(WORKER.with_name("tensorflow_worker.py"))
    return elastic.run(*flags, program=program, **QUIET, **legacy).err


def test_a_function_goes_on_with_other_ranks(elastic: Elastic) -> None:
    """2 ranks, 1, 2, 3 and 1, in one function that the survivors trace once.

    The first process that comes dies while it gets the state, which is not committed then.
    """
    elastic.batches, elastic.hosts = 16, "localhost:2"
    elastic.plan = [
        {"at": "graph", "batch": 4, "rank": 1, "do": "kill"},
        {"at": "sync", "epoch": 3, "rank": 1, "do": "kill"},
    ]
    told = train(
        elastic, "-np", "2", "--min-np", "1", "--max-np", "3", state="keras", probe=True,
        hosts={"9": "localhost:3", "13": "localhost:1"}, sizes={"8": 2, "10": 3, "14": 1},
        commit_every=3,
    )  # fmt: skip
    assert "last commit: gradients are reduced for several optimizers or tapes" in told
    assert check(elastic, Sgd()) == [2, 1, 2, 3, 1]
    assert elastic.repeated() == []
    for line in elastic.steps():
        size = line["size"]
        right = [1.0, 1.0, 12.0 * size, 1 / size, (size - 1) / 2, 1 / size]
        assert line["probe"] == pytest.approx(right), line
    (end,) = elastic.lines_of("end")
    assert end["traces"] == 1
    first = next(step for step in elastic.steps() if step["rank"] == 0)
    assert end["rank"] == 0 and end["pid"] == first["pid"]


@pytest.mark.parametrize(
    "options",
    [
        {"state": "keras", "optimizer": "adam"},
        {"state": "keras", "optimizer": "sgd", "eager": True},
        {"state": "counted", "optimizer": "adam", "name": "meanwhile_step"},
        {"state": "distributed", "optimizer": "sgd"},
        {"state": "distributed", "optimizer": "adam", "legacy": True},
        {"state": "counted", "optimizer": "old", "legacy": True},
    ],
)
def test_no_step_is_lost_without_a_commit(elastic: Elastic, options: dict[str, Any]) -> None:
    """A rank dies in a step, when one of two gradients is reduced already, and one after a step."""
    elastic.plan = [
        {"at": "graph", "batch": 4, "rank": 0, "do": "kill"},
        {"at": "applied", "batch": 8, "rank": 1, "do": "kill"},
    ]
    told = train(elastic, "-np", "3", "--min-np", "1", "--failures-per-host", "1",
                 "--flight-dir", str(elastic.folder / "flight"), commit_every=1000,
                 **options)  # fmt: skip
    assert told.count("and lose no step") == 2 and "last commit" not in told
    assert elastic.job.run("explain", str(elastic.folder / "flight")).out.count("no step") == 2
    rule = Sgd() if options["optimizer"] == "sgd" else Adam(of_keras=True)
    assert check(elastic, rule) == [3, 2, 1]
    assert elastic.repeated() == []


def test_a_loop_in_a_function_may_have_taken_several_steps(elastic: Elastic) -> None:
    elastic.plan = [{"at": "graph", "batch": 5, "rank": 1, "do": "kill"}]
    told = train(elastic, "-np", "2", "--min-np", "1", "--failures-per-host", "1", state="counted",
                 commit_every=3, loop=True)  # fmt: skip
    assert "last commit: a call of a function takes several steps" in told
    assert check(elastic, Sgd()) == [2, 1]
    assert elastic.repeated() == [4]


@pytest.mark.parametrize(
    ("plan", "again"),
    [
        ([{"at": "graph", "batch": 5, "rank": rank, "do": "kill"} for rank in (0, 2)], [4]),
        (
            [
                {"at": "committed", "batch": 6, "rank": 2, "do": "kill"},
                {"at": "sync", "epoch": 2, "rank": 0, "do": "kill"},
            ],
            [],
        ),
    ],
)
def test_deaths_go_back_to_the_last_commit(
    elastic: Elastic, plan: list[dict[str, Any]], again: list[int]
) -> None:
    elastic.plan = plan
    told = train(
        elastic, "-np", "3", "--min-np", "1", "--failures-per-host", "1", state="variables",
        commit_every=3,
    )  # fmt: skip
    assert "last commit: the state has no count of an optimizer's steps" in told
    assert check(elastic, Sgd()) == [3, 1]
    assert elastic.repeated() == again


def test_deaths_at_any_moment(elastic: Elastic) -> None:
    options = {"state": "keras", "optimizer": "adam", "commit_every": 10**9}
    killed(elastic, "tensorflow_worker.py", 3, 6, [0.0, 0.3, 5.0], options, **QUIET)
    check(elastic, Adam(of_keras=True), tolerance=1e-6)
    assert elastic.repeated() == []
