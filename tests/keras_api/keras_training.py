"""Small training jobs of Keras that several tests compare. Imported by ranks only.

`whole` and `share` cut the same samples, so that batch k of a rank's share, taken over all ranks,
is batch k of the whole.
"""

from __future__ import annotations

import functools
import hashlib
import random
from typing import Any

import keras
import numpy as np

import horoacc
import horoacc.keras as hvd

BATCH = 8
# Both sides of a comparison add the same products in another order. A sum of n numbers in float32
# is off by at most n * 2^-24 of their absolute sum, here 4 ranks * 8 samples. Gradients are below
# 1, and 6 steps of rate 0.05, with momentum 0.9, move a weight by at most 6 * 0.05 * 10 of them.
TOLERANCE = 4 * BATCH * 2.0**-24 * 6 * 0.05 * 10


def seed_weights(seed: int) -> None:
    """Decides those of the next models. `keras.utils.set_random_seed` would, too, but imports
    TensorFlow in every rank, whatever the backend is.
    """
    random.seed(seed)


def network(seed: int = 3, dtype: str = "float32") -> Any:
    """A net of two layers with odd sizes."""
    seed_weights(seed)
    return keras.Sequential([
        keras.Input((7,)),
        keras.layers.Dense(11, activation="tanh", dtype=dtype, name="inner"),
        keras.layers.Dense(3, dtype=dtype, name="outer"),
    ])  # fmt: skip


def whole(steps: int, dtype: str = "float32") -> tuple[Any, Any]:
    """All samples of some steps: x of shape [n, 7], y of shape [n, 3]."""
    rng = np.random.default_rng(11)
    count = steps * BATCH * hvd.size()
    return (rng.normal(size=(count, 7)).astype(dtype),
            rng.normal(size=(count, 3)).astype(dtype))  # fmt: skip


def share(steps: int, dtype: str = "float32") -> tuple[Any, Any]:
    """This rank's part of every batch."""
    return tuple(  # type: ignore[return-value]
        part.reshape(steps, hvd.size(), BATCH, -1)[:, hvd.rank()].reshape(steps * BATCH, -1)
        for part in whole(steps, dtype)
    )


def sgd(**arguments: Any) -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9, **arguments)


def fit(model: Any, optimizer: Any, data: tuple[Any, Any], batch: int = BATCH,
        **arguments: Any) -> Any:  # fmt: skip
    """Trains in the order of the samples."""
    model.compile(optimizer, loss=keras.losses.MeanSquaredError())
    return model.fit(*data, batch_size=batch, shuffle=False, verbose=0, **arguments)


def fit_alone(model: Any, optimizer: Any, data: tuple[Any, Any], batch: int) -> None:
    """What one rank learns, step by step: tracing would take much longer than the steps."""
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), run_eagerly=True)
    model.fit(*data, batch_size=batch, shuffle=False, verbose=0)


def values(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]


def close(model: Any, other: Any, tolerance: float = TOLERANCE) -> None:
    """Compares the weights with another model's, or with arrays, by the largest of each."""
    wanted = other if isinstance(other, list) else values(other)
    for mine, theirs in zip(values(model), wanted, strict=True):
        apart = np.abs(mine - theirs).max() / max(1.0, np.abs(theirs).max())
        assert apart <= tolerance, f"{apart:.3g} > {tolerance:.3g}"


def bits(model: Any) -> str:
    digest = hashlib.sha256()
    for value in values(model):
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def all_bits(model: Any) -> set[str]:
    """The ranks' weights as hashes: one if they are equal."""
    return set(horoacc.allgather_object(bits(model)))


def alone(steps: int, optimizer: Any = None, passes: int = 1, seed: int = 3) -> Any:
    """A model that one plain optimizer has trained on all samples."""
    model = network(seed)
    fit_alone(model, optimizer or sgd(), whole(steps), BATCH * hvd.size() * passes)
    return model


@functools.cache
def learned_alone(steps: int, passes: int = 1) -> list[Any]:
    """The weights of `alone`, which many bodies of a rank compare with."""
    return values(alone(steps, passes=passes))


def by_hand(weights: list[Any], x: Any, y: Any) -> list[Any]:
    """The gradients of the mean squared error of `network`."""
    first, first_bias, second, second_bias = weights
    hidden = np.tanh(x @ first + first_bias)
    error = 2 * (hidden @ second + second_bias - y) / y.size
    back = (error @ second.T) * (1 - hidden**2)
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def gradients(weights: list[Any], value: float) -> list[Any]:
    """Gradients all of whose elements are one value."""
    return [keras.ops.ones_like(weight) * value for weight in weights]
