"""Training under autotune: the bits are those without, whatever it tries, on all ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import training

import horoacc.torch as hvd
from horoacc import process, settings
from horoacc.autotune import Follower

# Small enough for several buckets, so that another threshold cuts others.
TUNED = {
    "HOROACC_AUTOTUNE": "1", "HOROACC_AUTOTUNE_WARMUP_SAMPLES": "0",
    "HOROACC_FUSION_THRESHOLD": "1000000", "HOROACC_PLAN_ROUNDS": "2",
}  # fmt: skip
# Every rank on a host of its own.
HOSTS = {"HOROACC_SIMULATED_HOSTS": "each", "HOROACC_REDUCTION": "canonical"}
MOST_ROUNDS, STEPS = 60, 10
TRIALS = 2

pytestmark = [
    pytest.mark.parametrize(
        "env", [pytest.param(TUNED, id="plain"), pytest.param(TUNED | HOSTS, id="hosts")]
    ),
    pytest.mark.ranks(2, 3, framework="horoacc.torch"),
]


def follower(cache: Path) -> Follower:
    """What `init()` leaves to the first step; a pool of ranks has no second `init()`."""
    os.environ["HOROACC_CACHE_DIR"] = str(cache)
    made = Follower(settings.read(os.environ))
    process._state.tuner = made
    return made


def train(tuner: Follower | None, rounds: int = MOST_ROUNDS) -> tuple[str, int, set[Any]]:
    """Trains for some rounds, or until there were some trials; gives all values, too."""
    process._state.tuner = tuner
    model = training.network(width=257)
    optimizer = training.wrapped(model)
    batches = training.own_batches(STEPS)
    seen, done = set(), 0
    while done < rounds:
        for batch in batches:
            training.steps(model, optimizer, [batch])
            seen.add(process.engine().tuned)
        done += 1
        own = tuner._tuner if tuner is not None else None
        if hvd.broadcast_object(own is not None and len(own.trials) >= TRIALS, 0):
            break
    process._state.tuner = None
    return training.bits(model), done, seen


def test_the_bits_are_those_without(tmp_path: Path) -> None:
    tuned, rounds, seen = train(follower(tmp_path))
    assert len(seen) > 1, seen
    assert len(set(hvd.allgather_object(tuned))) == 1
    assert len(set(hvd.allgather_object(process.engine().tuned))) == 1
    assert train(None, rounds)[0] == tuned


def test_all_values_have_the_same_bits() -> None:
    results = []
    engine = process.engine()
    own = engine.tuned
    changed = [
        (own[0] // 4, own[1], 0, 0), (own[0], 1 << 20, 1 << 16, 0), (own[0] // 64, 4096, 0, 0),
    ]  # fmt: skip
    for values in ([own], [*changed, own]):
        model = training.network(width=257)
        optimizer = training.wrapped(model)
        for number, batch in enumerate(training.own_batches(28)):
            engine.tune(*values[number // 7 % len(values)])
            training.steps(model, optimizer, [batch])
        results.append(training.finish(model)[0])
    assert results[0] == results[1]


def test_ranks_that_join_are_tuned_again(tmp_path: Path) -> None:
    tuner = follower(tmp_path)
    model = training.network(width=257)
    optimizer = training.wrapped(model)
    met = 0
    for last in (0, hvd.size() - 1):
        for steps in (7, 29):
            batches = training.own_batches(60)
            # Rank 0, which orders, joins first or last.
            own = batches if hvd.rank() == last else batches[:steps]
            training.steps(model, optimizer, own)
            hvd.join()
            hvd.broadcast_parameters(model.state_dict(), 0)
            assert tuner._reducer is None
            training.steps(model, optimizer, batches[:30])
            met += tuner._left > 0 and not tuner._alone
    process._state.tuner = None
    assert met == 4
    assert len(set(hvd.allgather_object(tuner._left))) == 1


def test_of_several_optimizers_the_one_in_use_is_tuned(tmp_path: Path) -> None:
    tuner = follower(tmp_path)
    models = [training.network(seed=seed) for seed in (1, 2)]
    first, second = (training.wrapped(model) for model in models)
    batches = training.own_batches(10)
    training.steps(models[0], first, batches)
    training.steps(models[1], second, batches)
    training.steps(models[0], first, batches)
    assert tuner._reducer is not None and tuner._reducer() is first._gradients
    for _ in range(6):
        training.steps(models[1], second, batches)
    assert tuner._reducer() is second._gradients
    process._state.tuner = None
    for model in models:
        training.finish(model)
