"""What a distributed optimizer takes over from the given one, and what is refused."""

from __future__ import annotations

import tempfile
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, on_tensorflow, ranks


@mostly_on_torch
@ranks(1, 2)
def test_settings_and_state_are_taken_over() -> None:
    import keras_training as training

    model = training.network()
    plain = keras.optimizers.AdamW(0.01)
    plain.exclude_from_weight_decay(var_names=["bias"])
    training.fit(model, plain, training.whole(2), training.BATCH * hvd.size())
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, type(plain)) and optimizer is not plain
    assert optimizer.__class__ is type(plain)
    assert optimizer.get_config() == plain.get_config()
    assert int(optimizer.iterations) == int(plain.iterations) == 2
    for mine, theirs in zip(optimizer.variables, plain.variables, strict=True):
        assert mine is not theirs
        assert (keras.ops.convert_to_numpy(mine) == keras.ops.convert_to_numpy(theirs)).all()
    assert not optimizer._use_weight_decay(model.weights[1])
    assert optimizer._use_weight_decay(model.weights[0])
    # Both go on from there: the given one is still whole.
    other = training.network()
    for weight, value in zip(other.weights, training.values(model), strict=True):
        weight.assign(value)
    training.fit(model, optimizer, training.share(2))
    assert int(plain.iterations) == 2
    assert len(plain.variables) == len(optimizer.variables)


@mostly_on_torch
@ranks(2)
def test_an_optimizer_from_its_config_is_distributed() -> None:
    import keras_training as training

    model = training.network()
    start = training.values(model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    copied = optimizer.from_config(optimizer.get_config())
    assert copied.get_config() == optimizer.get_config() and copied is not optimizer
    assert not hasattr(optimizer.__class__.from_config(optimizer.get_config()), "_reduction")
    copied.apply(training.gradients(model.trainable_weights, 0.5), model.trainable_weights)
    for now, before in zip(training.values(model), start, strict=True):
        np.testing.assert_allclose(now, before - 0.5 * hvd.size(), rtol=1e-5, atol=1e-6)


@mostly_on_torch
@ranks(1, 2)
def test_schedules_and_functions_as_learning_rates() -> None:
    import keras_training as training

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5, staircase=True)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(schedule))
    training.fit(training.network(), optimizer, training.share(2))
    assert float(optimizer.learning_rate) == pytest.approx(0.025)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(lambda: 0.125))
    assert float(optimizer.learning_rate) == 0.125


@on_both
@ranks(2)
def test_optimizer_of_a_user() -> None:
    import keras_training as training

    class Signs(keras.optimizers.Optimizer):  # type: ignore[misc]
        def __init__(self, learning_rate: float = 0.1, **kwargs: Any) -> None:
            super().__init__(learning_rate=learning_rate, **kwargs)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            step = keras.ops.cast(learning_rate, variable.dtype) * keras.ops.sign(gradient)
            self.assign_sub(variable, step)

    model = training.network()
    training.fit(model, hvd.DistributedOptimizer(Signs()), training.share(3))
    assert len(training.all_bits(model)) == 1
    training.close(model, training.alone(3, Signs()))


@on_both
@ranks(2)
@pytest.mark.parametrize("by", ["map", "function"])
def test_several_optimizers_in_one(by: str) -> None:
    """Layers have optimizers of their own; the gradients of all are reduced once, before them."""
    import keras_training as training

    def made() -> Any:
        first = keras.optimizers.RMSprop(0.01, momentum=0.9)
        second = training.sgd()
        if by == "map":
            chosen = keras.optimizers.OptimizerMap(second, {"inner/.*": first})
        else:
            chosen = lambda variable: first if "inner" in variable.path else second  # noqa: E731
        return keras.optimizers.MultiOptimizer(chosen)

    model = training.network()
    optimizer = hvd.DistributedOptimizer(made())
    training.fit(model, optimizer, training.share(3))
    assert len(optimizer.optimizers) == 2
    assert len(training.all_bits(model)) == 1
    # RMSprop divides by the gradient's size: what rounding has changed of a small one grows.
    training.close(model, training.alone(3, made()), 20 * training.TOLERANCE)


@mostly_on_torch
@ranks(1, 2, 4)
def test_refused() -> None:
    import keras_training as training

    def refused(words: str, optimizer: Any = None, error: type = ValueError, **given: Any) -> None:
        with pytest.raises(error, match=words):
            hvd.DistributedOptimizer(optimizer or training.sgd(), **given)

    refused("must be hvd.Average or hvd.Sum, not Adasum", op=hvd.Adasum)
    refused("must be hvd.Average or hvd.Sum", op=17)
    refused("not supported with op != Average", op=hvd.Sum, gradient_predivide_factor=2.0)
    refused("must be positive", gradient_predivide_factor=-1.0)
    refused("backward_passes_per_step must be a positive", backward_passes_per_step=0)
    refused("non-negative integer or a list of lists", groups="all")
    refused("non-negative integer", groups=-1)
    refused("distributed already", hvd.DistributedOptimizer(training.sgd()))
    inside = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(training.sgd()))
    refused("distributed already", inside)
    refused("an optimizer of Keras, not builtins.str", "adam", TypeError)
    with pytest.raises(ValueError, match=r"must be of type keras.layers.Layer, not str"):
        hvd.PartialDistributedOptimizer(training.sgd(), local_layers=["dense"])
    with pytest.raises(ValueError, match="built"):
        hvd.DistributedOptimizer(training.sgd()).apply([np.ones(3)])


@mostly_on_torch
@ranks(2, 4)
def test_ranks_that_disagree_are_told() -> None:
    import keras_training as training

    layer = keras.layers.Dense(2 + hvd.rank())
    layer.build((None, 3))
    optimizer = hvd.DistributedOptimizer(training.sgd(), groups=1)
    weights = layer.trainable_weights
    grads = [keras.ops.ones_like(weight) for weight in weights]
    with pytest.raises(Exception, match="shape"):
        optimizer.apply(grads, weights)


@on_tensorflow
@ranks(1, 2)
def test_xla_is_refused_with_what_to_do() -> None:
    import keras_training as training

    model = training.network()
    model.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse", jit_compile=True)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(ValueError, match=r"jit_compile=False to model.compile"):
        model.fit(*training.share(1), verbose=0, callbacks=[callback])
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"jit_compile=False to model.compile"):
            model.fit(*training.share(1), verbose=0)


@on_tensorflow
@ranks(1, 2)
def test_xla_is_not_chosen_where_it_cannot_work() -> None:
    import keras_training as training

    gpu = types.SimpleNamespace(device_type="GPU")
    with mock.patch("tensorflow.config.list_physical_devices", lambda *_: [gpu]):
        plain = training.network()
        plain.compile(training.sgd(), loss="mse")  # jit_compile="auto"
        model = training.network()
        model.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse")
        scaled = training.network(dtype="mixed_float16")
        scaled.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse")
    assert plain.jit_compile and not model.jit_compile and not scaled.jit_compile
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*training.share(1), verbose=0, callbacks=[callback])
    with tempfile.TemporaryDirectory() as folder:
        plain.save(f"{folder}/model.keras")  # which says that it was compiled by XLA
        loaded = hvd.load_model(f"{folder}/model.keras")
    loaded.fit(*training.share(1), verbose=0, callbacks=[callback])
    assert len(training.all_bits(loaded)) == 1


@on_both
@ranks(1)
def test_what_is_no_model_is_refused() -> None:
    for strange in (3, type("Sequential", (), {"__module__": "tf_keras.src.models"})()):
        with pytest.raises(TypeError, match="a model of Keras, not"):
            hvd.callbacks.MetricAverageCallback().set_model(strange)
