"""A linear regression that elastic jobs train, and its replay from the log by NumPy.

Each rank takes the samples of its batch by its rank. The optimizer is SGD with momentum in float64.
Jobs go back to their last commit: of each batch the last epoch of the membership that did it
counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from elastic_jobs import Elastic

FEATURES, PER_RANK = 6, 4
# All numbers are those of float32, which Keras makes of some.
RATE, MOMENTUM = 1 / 64, 7 / 8
INPUTS = np.round(np.random.default_rng(1).standard_normal((4096, FEATURES)) * 64) / 64
TARGETS = INPUTS @ np.arange(1.0, FEATURES + 1)


def samples(batch: int, rank: int) -> tuple[Any, Any]:
    """Inputs of shape (PER_RANK, FEATURES) and targets of shape (PER_RANK, 1) of a rank's batch."""
    first = (batch * 97 + rank * PER_RANK) % (4096 - PER_RANK)
    part = slice(first, first + PER_RANK)
    return INPUTS[part], TARGETS[part, np.newaxis]


def check(elastic: Elastic, tolerance: float = 1e-9) -> list[int]:
    """Replays the log: each batch begins where the one before it ended, and is a step of its ranks.

    Args:
        elastic: The job.
        tolerance: How far weights may be from those of the replay.

    Returns:
        The sizes of the epochs that the final weights are made of, in their order.
    """
    weights = np.array(next(
        line["weight"] for line in elastic.lines_of("begin") if line["rank"] == 0
    ))  # fmt: skip
    moment = np.zeros(FEATURES)
    ended = list(weights)
    sizes: dict[int, int] = {}
    for step in elastic.timeline():
        sizes[step["epoch"]] = step["size"]
        assert step["before"] == ended, step
        ended = step["weight"]
        grads = []
        for rank in range(step["size"]):
            x, t = samples(step["batch"], rank)
            grads.append(2 * (x @ weights - t[:, 0]) @ x / PER_RANK)
        moment = MOMENTUM * moment + np.mean(grads, axis=0)
        weights = weights - RATE * moment
        assert np.allclose(ended, weights, atol=tolerance, rtol=0), step
    ends = elastic.lines_of("end")
    assert ends and all(end["weight"] == ended for end in ends)
    return [sizes[epoch] for epoch in sorted(sizes)]
