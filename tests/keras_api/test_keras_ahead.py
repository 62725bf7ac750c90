"""Gradients that are computed, and so reduced, before they are applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, on_tensorflow, ranks, tf


@mostly_on_torch
@ranks(1, 2, 4)
def test_what_is_reduced_ahead_is_not_reduced_again() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    weights = model.trainable_weights
    grads = [keras.ops.ones_like(weight) * (hvd.rank() + 1) for weight in weights]
    total = sum(range(1, hvd.size() + 1))
    for found in optimizer._allreduce(grads, weights):
        assert (keras.ops.convert_to_numpy(found) == total).all()
    start = training.values(model)
    grads = [keras.ops.ones_like(weight) * (hvd.rank() + 1) for weight in weights]
    reduced = optimizer._aggregate_gradients(zip(grads, weights, strict=True))
    optimizer.apply_gradients(zip(reduced, weights, strict=True))
    optimizer.apply_gradients(
        zip(training.gradients(weights, 10), weights, strict=True),
        experimental_aggregate_gradients=False,
    )
    optimizer.apply_gradients(zip(training.gradients(weights, 100), weights, strict=True))
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - total - 10 - 100 * hvd.size(), atol=1e-4)
    assert len(optimizer.variables) == len(optimizer.variables())


@on_both
@ranks(1, 2, 4)
def test_compute_gradients() -> None:
    import keras_training as training

    model = training.network()
    start = training.values(model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    x, y = training.share(1)
    weights = model.trainable_weights
    in_graphs = keras.backend.backend() == "tensorflow"

    def loss() -> Any:
        return keras.ops.mean(keras.ops.square(model(x) - keras.ops.convert_to_tensor(y)))

    def reduced() -> list[Any]:
        return list(optimizer.get_gradients(loss if in_graphs else loss(), weights))

    wanted = training.by_hand(start, *training.whole(1))
    for way in [reduced, tf.function(reduced)] if in_graphs else [reduced]:
        for found, value in zip(way(), wanted, strict=True):
            assert np.abs(keras.ops.convert_to_numpy(found) - value).max() <= training.TOLERANCE
    pairs = optimizer.compute_gradients(loss if in_graphs else loss(), weights)
    optimizer.apply_gradients(pairs)
    for found, value, step in zip(training.values(model), start, wanted, strict=True):
        assert np.abs(found - (value - step)).max() <= training.TOLERANCE
    with pytest.raises(ValueError, match="grad_loss"):
        optimizer._compute_gradients(loss, weights, grad_loss=1)
    with pytest.raises(ValueError, match="tape"):
        optimizer.compute_gradients(1.0, weights, tape=None if in_graphs else object())


@on_both
@ranks(2)
def test_gradients_that_were_only_looked_at() -> None:
    """What is trained afterwards is reduced, in a graph and eagerly."""
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd())
    weights = model.trainable_weights
    optimizer.build(weights)
    x, y = training.share(1)

    def loss() -> Any:
        return keras.ops.mean(keras.ops.square(model(x) - keras.ops.convert_to_tensor(y)))

    in_graphs = keras.backend.backend() == "tensorflow"
    optimizer.compute_gradients(loss if in_graphs else loss(), weights)
    training.fit(model, optimizer, training.share(6))
    assert len(training.all_bits(model)) == 1
    training.close(model, training.alone(6, training.sgd()))
    start = training.values(model)
    plain = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    plain.compute_gradients(loss if in_graphs else loss(), weights)
    plain.apply(training.gradients(weights, 1.0 + hvd.rank()), weights)
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - 1.5, atol=1e-5)


@on_both
@ranks(2)
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_what_is_made_of_computed_gradients(op: str) -> None:
    """Clipped ones, say: they are the ranks' own no more."""
    import keras_training as training

    model = training.network()
    weights = model.trainable_weights
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=getattr(hvd, op))
    optimizer.build(weights)
    in_graphs = keras.backend.backend() == "tensorflow"
    slope = 1.0 + hvd.rank()

    def loss() -> Any:
        return sum(keras.ops.sum(weight) for weight in weights) * slope

    def step() -> None:
        pairs = optimizer.compute_gradients(loss if in_graphs else loss(), weights)
        optimizer.apply_gradients([(gradient / 3, weight) for gradient, weight in pairs])

    start = training.values(model)
    ways = [step, tf.function(step)] if in_graphs else [step]
    for way in ways:
        way()
        way()
    moved = 2 * len(ways) * (3.0 if op == "Sum" else 1.5) / 3
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - moved, atol=1e-5)


@on_tensorflow
@ranks(2)
def test_computed_in_a_function_and_applied_outside() -> None:
    import keras_training as training

    model = training.network()
    weights = model.trainable_weights
    slope = 1.0 + hvd.rank()
    for op, wanted in ((hvd.Average, 1.5), (hvd.Sum, 3.0)):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)
        optimizer.build(weights)

        def loss() -> Any:
            return sum(keras.ops.sum(weight) for weight in weights) * slope

        @tf.function
        def computed(optimizer: Any = optimizer, loss: Any = loss) -> Any:
            return optimizer.get_gradients(loss, weights)

        for _ in range(2):
            pairs = list(zip(computed(), weights, strict=True))
            if op == hvd.Sum:
                with pytest.raises(ValueError, match="skip_gradients_aggregation=True"):
                    optimizer.apply_gradients(pairs)
            start = training.values(model)
            optimizer.apply_gradients(pairs, skip_gradients_aggregation=op == hvd.Sum)
            for found, value in zip(training.values(model), start, strict=True):
                assert np.allclose(found, value - wanted, atol=1e-5)
