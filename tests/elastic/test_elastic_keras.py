"""Elastic training with `model.fit`: NumPy replays the log of memberships."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic
from random_deaths import killed
from regression import check
from replays import Adam, Sgd

STEPS, EPOCHS = 5, 4
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
ENVIRONMENTS = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow", **QUIET},
    "torch": {"KERAS_BACKEND": "torch"},
    "tf_keras": {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "1", **QUIET},
}

# By environment and optimizer: Keras computes in float32 on torch.
TOLERANCES = {"torch": {"sgd": 1e-5, "adam": 1e-4}}


def rule_of(kind: str, options: dict[str, Any]) -> tuple[Sgd, float]:
    name = options.get("optimizer", "sgd")
    rule = Adam(of_keras=True) if name == "adam" else Sgd()
    return rule, TOLERANCES.get(kind, {}).get(name, 1e-9)


def train(elastic: Elastic, kind: str, *flags: str, **options: Any) -> str:
    needs(kind)
    elastic.batches = STEPS * EPOCHS
    (elastic.folder / "options").write_text(json.dumps({"steps": STEPS, **options}))
    program = str(WORKER.with_name("keras_worker.py"))
    told = elastic.run(*flags, program=program, **ENVIRONMENTS[kind]).err
    steps = STEPS * EPOCHS // options.get("distributed", {}).get("backward_passes_per_step", 1)
    for end in elastic.lines_of("end"):
        assert (end["epoch"], end["batch"], end["iterations"]) == (EPOCHS, 0, steps), end
    return told


def needs(kind: str) -> None:
    for package in {"keras", {"torch": "torch", "tf_keras": "tf_keras"}.get(kind, "tensorflow")}:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


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
    assert check(elastic, *rule_of(kind, {})) == [2, 1, 2, 1, 2]
    assert elastic.repeated() == []


def deaths(**where: Any) -> list[dict[str, Any]]:
    return [{**where, "rank": rank, "do": "kill"} for rank in (0, 2)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("tensorflow", {"optimizer": "adam", "compile": {"metrics": ["mae"]}}),
        ("torch", {"optimizer": "adam", "fit": "initial"}),
        ("tf_keras", {"optimizer": "sgd", "fit": "rest"}),
    ],
)
def test_no_step_is_lost_without_a_commit(
    elastic: Elastic, kind: str, options: dict[str, Any]
) -> None:
    """A rank dies in a step, when TensorFlow has reduced one of two gradients, and after one."""
    elastic.plan = [
        {"at": "step", "batch": 4, "rank": 0, "do": "kill"},
        {"at": "applied", "batch": 10, "rank": 1, "do": "kill"},
    ]
    told = train(elastic, kind, "-np", "3", "--min-np", "1", "--failures-per-host", "1",
                 commit_every=0, averages=False, **options)  # fmt: skip
    assert told.count("and lose no step") == 2 and "last commit" not in told
    assert check(elastic, *rule_of(kind, options)) == [3, 2, 1]
    assert elastic.repeated() == []


@pytest.mark.parametrize(
    ("kind", "plan", "why", "again", "options"),
    [
        # At the epoch's end the metrics are averaged, which is no gradient.
        ("torch", deaths(at="applied", batch=10), "the error left allgather.keras", [10], {}),
        ("tensorflow", deaths(at="step", batch=3), "the model was compiled with steps_per_exec",
         [], {"compile": {"steps_per_execution": 5}}),
        ("tensorflow", deaths(at="step", batch=4), "a step takes several backward passes", [3],
         {"distributed": {"backward_passes_per_step": 2}}),
    ],
)  # fmt: skip
def test_what_goes_back_to_the_last_commit(
    elastic: Elastic, kind: str, plan: list[dict[str, Any]], why: str, again: list[int],
    options: dict[str, Any],
) -> None:  # fmt: skip
    elastic.plan = plan
    told = train(
        elastic, kind, "-np", "3", "--min-np", "1", "--failures-per-host", "1",
        commit_every=2, first=100, **options,
    )  # fmt: skip
    assert f"last commit: {why}" in told
    if not options:
        assert check(elastic, *rule_of(kind, options)) == [3, 1]
    assert elastic.repeated() == again


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        (
            "tensorflow",
            [
                {"at": "committed", "batch": 9, "rank": 2, "do": "kill"},
                {"at": "reset", "epoch": 2, "rank": 0, "do": "kill"},
            ],
        ),
        ("torch", deaths(at="epoch", epoch=2)),
    ],
)
def test_deaths_between_steps(elastic: Elastic, kind: str, plan: list[dict[str, Any]]) -> None:
    elastic.plan = plan
    train(
        elastic, kind, "-np", "3", "--min-np", "1", "--failures-per-host", "1", commit_every=2,
        order="commit first", first=100, trains=kind == "tensorflow",
    )  # fmt: skip
    assert check(elastic, *rule_of(kind, {})) == [3, 1]
    assert elastic.repeated() == []


@pytest.mark.parametrize(("kind", "kills"), [("tensorflow", 5), ("torch", 8)])
def test_deaths_at_any_moment(elastic: Elastic, kind: str, kills: int) -> None:
    needs(kind)
    options = {"steps": STEPS, "commit_every": 0, "averages": False}
    killed(elastic, "keras_worker.py", 3, kills, [0.0, 0.3, 5.0], options, **ENVIRONMENTS[kind])
    check(elastic, Sgd(), 1e-4 if kind == "torch" else 1e-6)
    assert elastic.repeated() == []
