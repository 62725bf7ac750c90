"""Elastic training with `model.fit`: NumPy replays the log of memberships."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic
from regression import check

STEPS, EPOCHS = 5, 4
ENVIRONMENTS = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "torch": {"KERAS_BACKEND": "torch"},
    "tf_keras": {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "1"},
}

TOLERANCES = {
    "tensorflow": 1e-9,
    "tf_keras": 1e-9,
    "torch": 1e-5,
}  # Keras computes in float32 there


def train(elastic: Elastic, kind: str, *flags: str, **options: Any) -> str:
    for package in {"keras", {"torch": "torch", "tf_keras": "tf_keras"}.get(kind, "tensorflow")}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    elastic.batches = STEPS * EPOCHS
    (elastic.folder / "options").write_text(json.dumps({"steps": STEPS, **options}))
    program = str(WORKER.with_name("keras_worker.py"))
    told = elastic.run(
        *flags, program=program, TF_CPP_MIN_LOG_LEVEL="2", **ENVIRONMENTS[kind]
    ).err  # fmt: skip
    for end in elastic.lines_of("end"):
        assert (end["epoch"], end["batch"], end["iterations"]) == (EPOCHS, 0, STEPS * EPOCHS), end
    return told


@pytest.mark.parametrize(
    ("kind", "fit"), [("tensorflow", "horovod"), ("torch", "rest"), ("tf_keras", "initial")]
)
def test_ranks_die_and_come(elastic: Elastic, kind: str, fit: str) -> None:
    """2 ranks, 1 and 2, twice: rank 0 dies in a step, and another one after a commit."""
    elastic.plan = [
        {"at": "step", "batch": 4, "rank": 0, "do": "kill"},
        {"at": "committed", "batch": 12, "rank": 1, "do": "kill"},
    ]
    told = train(
        elastic, kind, "-np", "2", "--min-np", "1", fit=fit, sizes={"8": 2, "14": 2},
        trains=kind != "tf_keras",
    )  # fmt: skip
    assert told.count("1 of them new") == 2
    assert check(elastic, TOLERANCES[kind]) == [2, 1, 2, 1, 2]
    assert elastic.repeated() == []


def deaths(**where: Any) -> list[dict[str, Any]]:
    return [{**where, "rank": rank} for rank in (0, 2)]


@pytest.mark.parametrize(
    ("kind", "plan", "again", "order"),
    [
        (
            "tensorflow",
            [{"at": "committed", "batch": 9, "rank": 2}, {"at": "reset", "epoch": 2, "rank": 0}],
            [],
            "commit first",
        ),
        ("torch", deaths(at="applied", batch=8), [8], ""),
        ("torch", deaths(at="epoch", epoch=2), [], "commit first"),
    ],
)
def test_deaths_go_back_to_the_last_commit(
    elastic: Elastic, kind: str, plan: list[dict[str, Any]], again: list[int], order: str
) -> None:
    elastic.plan = [{**death, "do": "kill"} for death in plan]
    told = train(
        elastic, kind, "-np", "3", "--min-np", "1", "--failures-per-host", "1", commit_every=2,
        order=order, first=100, trains=kind == "tensorflow",
    )  # fmt: skip
    assert "last commit" in told
    assert check(elastic, TOLERANCES[kind]) == [3, 1]
    assert elastic.repeated() == again
