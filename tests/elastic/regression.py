"""A linear regression that elastic jobs train, and its replay from the log by NumPy.

Each rank takes the samples of its batch by its rank. Of each batch the last epoch of the membership
that did it counts: what a job did before it went back to a commit is not there any more. `replays`
has the optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from elastic_jobs import Elastic
    from replays import Sgd

FEATURES, PER_RANK = 6, 4
# All numbers are those of float32, which Keras makes of some.
RATE, MOMENTUM = 1 / 64, 7 / 8
ADAM = {"learning_rate": 1 / 16, "beta_1": 7 / 8, "beta_2": 1023 / 1024, "epsilon": 2.0**-23}
LBFGS_RATE, LBFGS_ITERATIONS = 1 / 8, 4
INPUTS = np.round(np.random.default_rng(1).standard_normal((4096, FEATURES)) * 64) / 64
TARGETS = INPUTS @ np.arange(1.0, FEATURES + 1)


def samples(batch: int, rank: int) -> tuple[Any, Any]:
    """Inputs of shape (PER_RANK, FEATURES) and targets of shape (PER_RANK, 1) of a rank's batch."""
    first = (batch * 97 + rank * PER_RANK) % (4096 - PER_RANK)
    part = slice(first, first + PER_RANK)
    return INPUTS[part], TARGETS[part, np.newaxis]


def model_of(keras: Any, late: Callable[[Any], Any]) -> Any:
    """The model in two variables of Keras; `late` is called with what the second contributes."""

    class Contributed(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return late(x) if self.name == "second" else x

    x = keras.layers.Input((FEATURES,))
    half = FEATURES // 2
    parts = {"first": x[:, :half], "second": x[:, half:]}
    # As deep as each other, so that the variables have this order.
    return keras.Model(x, keras.layers.Add()([
        Contributed(name=name)(keras.layers.Dense(1, use_bias=False)(part))
        for name, part in parts.items()
    ]))  # fmt: skip


def late_gradient(happens: Callable[[], None]) -> Callable[[Any], Any]:
    """For TensorFlow: gives what it gets, of which the gradient comes once something has happened.

    The gradients of other variables are reduced by then: a death is one in the middle of a step.
    """
    import tensorflow as tf  # noqa: PLC0415 - torch's workers have none

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def late(x: Any) -> Any:
        def backward(gradient: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(happens, [], [])]):
                return tf.identity(gradient)

        return tf.identity(x), backward

    return late  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Batch:
    """A batch of so many ranks, each of which adds up the gradients of several parts of its own."""

    number: int
    ranks: int
    passes: int = 1

    def gradients(self, weights: Any) -> Any:
        """Each rank's gradient of its loss, an array of shape (ranks, FEATURES)."""
        of = [samples(self.number, rank) for rank in range(self.ranks)]
        return np.array(
            [self.passes * 2 * (x @ weights - t[:, 0]) @ x / PER_RANK for x, t in of]
        )  # fmt: skip

    def loss(self, weights: Any) -> float:
        """The mean of the ranks' mean squared errors."""
        of = [samples(self.number, rank) for rank in range(self.ranks)]
        return float(np.mean([np.mean((x @ weights - t[:, 0]) ** 2) for x, t in of]))


def check(elastic: Elastic, rule: Sgd, tolerance: float = 1e-9, passes: int = 1) -> list[int]:
    """Replays the log: each batch begins where the one before it ended, and is a step of its ranks.

    Args:
        elastic: The job.
        rule: Its optimizer, of `replays`, which has made no step.
        tolerance: How far weights may be from those of the replay.
        passes: How many backward passes, each over a part of the batch, are added up in a step.

    Returns:
        The sizes of the epochs that the final weights are made of, in their order.
    """
    weights = np.array(next(
        line["weight"] for line in elastic.lines_of("begin") if line["rank"] == 0
    ))  # fmt: skip
    ended = list(weights)
    sizes: dict[int, int] = {}
    # Who noted a batch: its rank in each epoch.
    ranks: dict[tuple[int, int], dict[int, int]] = {}
    for line in elastic.steps():
        ranks.setdefault((line["epoch"], line["batch"]), {})[line["pid"]] = line["rank"]
    before: dict[str, Any] | None = None
    for step in elastic.timeline():
        sizes[step["epoch"]] = step["size"]
        assert step["before"] == ended, step
        ended = step["weight"]
        if before and before["epoch"] != step["epoch"]:
            now = ranks[step["epoch"], step["batch"]]
            leaders = [pid for pid, rank in now.items() if rank == 0]
            noted = ranks[before["epoch"], before["batch"]]
            rule.led_by(noted.get(leaders[0]) if leaders else None)
        weights = rule.step(weights, Batch(step["batch"], step["size"], passes))
        assert np.allclose(ended, weights, atol=tolerance, rtol=0), (step, weights)
        before = step
    ends = elastic.lines_of("end")
    assert ends and all(end["weight"] == ended for end in ends)
    return [sizes[epoch] for epoch in sorted(sizes)]
