"""Elastic training with TensorFlow: NumPy replays the log of memberships."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic
from regression import check

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)


def train(elastic: Elastic, *flags: str, **options: Any) -> str:
    (elastic.folder / "options").write_text(json.dumps(options))
    program = str(WORKER.with_name("tensorflow_worker.py"))
    return elastic.run(*flags, program=program, TF_CPP_MIN_LOG_LEVEL="2").err


def test_a_function_goes_on_with_other_ranks(elastic: Elastic) -> None:
    """2 ranks, 1, 2, 3 and 1, in one function that the survivors trace once.

    The first process that comes dies while it gets the state, which is not committed then.
    """
    elastic.batches, elastic.hosts = 16, "localhost:2"
    elastic.plan = [
        {"at": "graph", "batch": 4, "rank": 1, "do": "kill"},
        {"at": "sync", "epoch": 3, "rank": 1, "do": "kill"},
    ]
    train(
        elastic, "-np", "2", "--min-np", "1", "--max-np", "3", state="keras", probe=True,
        hosts={"9": "localhost:3", "13": "localhost:1"}, sizes={"8": 2, "10": 3, "14": 1},
        commit_every=3,
    )  # fmt: skip
    assert check(elastic) == [2, 1, 2, 3, 1]
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
    ("deaths", "again"),
    [
        ([{"at": "graph", "batch": 5, "rank": 0}, {"at": "graph", "batch": 5, "rank": 2}], [4]),
        ([{"at": "committed", "batch": 6, "rank": 2}, {"at": "sync", "epoch": 2, "rank": 0}], []),
    ],
)
def test_deaths_go_back_to_the_last_commit(
    elastic: Elastic, deaths: list[dict[str, Any]], again: list[int]
) -> None:
    elastic.plan = [{**death, "do": "kill"} for death in deaths]
    told = train(
        elastic, "-np", "3", "--min-np", "1", "--failures-per-host", "1", state="variables",
        commit_every=3,
    )  # fmt: skip
    assert "last commit" in told
    assert check(elastic) == [3, 1]
    assert elastic.repeated() == again
