"""Mixed precision with Keras: the ranks agree about overflow, whoever wrapped whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, ranks


def scaled(order: str, rate: float) -> Any:
    """A loss-scaling optimizer around or inside a distributed one."""
    sgd = keras.optimizers.SGD(rate)
    if order == "inside":
        return hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd, initial_scale=8.0))
    return keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd), initial_scale=8.0)


@on_both
@ranks(1, 2, 4)
@pytest.mark.parametrize("order", ["inside", "around"])
def test_overflow_on_one_rank_is_everybodys(order: str) -> None:
    import keras_training as training

    model = training.network(dtype="float32")
    optimizer = scaled(order, 1.0)
    weights = model.trainable_weights
    optimizer.build(weights)
    start = training.values(model)

    def grads(value: float) -> list[Any]:
        return [keras.ops.ones_like(weight) * value for weight in weights]

    optimizer.apply(grads(8.0 * (hvd.rank() + 1)), weights)
    mean = (hvd.size() + 1) / 2
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - mean, atol=1e-5)
    start = training.values(model)
    last = hvd.size() - 1
    optimizer.apply(grads(np.inf if hvd.rank() == last else 1.0), weights)
    assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 4.0
    for found, value in zip(training.values(model), start, strict=True):
        assert (found == value).all()
    optimizer.apply(grads(4.0), weights)
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - 1.0, atol=1e-5)


@mostly_on_torch
@ranks(1, 2)
@pytest.mark.parametrize("passes", [1, 2])
def test_fit_with_the_policy(passes: int) -> None:
    """`compile` puts the loss scaling around; what is learned is that of float32, coarsely."""
    import keras_training as training

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.network(dtype="mixed_float16")
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.05), backward_passes_per_step=passes,
            average_aggregated_gradients=True,
        )  # fmt: skip
        training.fit(model, optimizer, training.share(4, "float32"))
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    finally:
        keras.config.set_dtype_policy("float32")
    assert int(optimizer.iterations) == 4 // passes
    assert len(training.all_bits(model)) == 1
    alone = training.network(dtype="float32")
    training.fit_alone(
        alone, keras.optimizers.SGD(0.05), training.whole(4, "float32"),
        training.BATCH * hvd.size() * passes,
    )  # fmt: skip
    # float16 has 11 binary digits; each of 4 steps moves a weight by 0.05 of a gradient below 2.
    training.close(model, alone, 4 * 0.05 * 2 * 2.0**-9)


@on_both
@ranks(1, 2, 4)
@pytest.mark.parametrize("how", ["layers", "registered"])
def test_overflow_in_a_local_layer_is_everybodys(how: str) -> None:
    import keras_training as training

    model = training.network(dtype="float32")
    local = model.layers[0]
    sgd = keras.optimizers.SGD(1.0)
    if how == "layers":
        scaler = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=8.0)
        optimizer = hvd.PartialDistributedOptimizer(scaler, local_layers=[local])
    else:
        inner = hvd.DistributedOptimizer(sgd)
        for variable in local.trainable_weights:
            inner.register_local_var(variable)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    weights = model.trainable_weights
    optimizer.build(weights)
    start = training.values(model)
    overflown = training.gradients(weights, 8.0)
    if hvd.rank() == hvd.size() - 1:
        overflown[1] = overflown[1] * np.inf
    optimizer.apply(overflown, weights)
    assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == 4.0
    for found, value in zip(training.values(model), start, strict=True):
        assert (found == value).all()
    optimizer.apply(training.gradients(weights, 4.0), weights)
    scale = hvd.size()  # of local gradients, unless scale_local_gradients=False
    for index, (found, value) in enumerate(zip(training.values(model), start, strict=True)):
        assert np.allclose(found, value - (1.0 / scale if index < 2 else 1.0), atol=1e-5)
