"""Optimizers, callbacks and files of the legacy package tf_keras, where it is installed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from lazy import TORCH, hvd, keras, on_tf_keras, ranks, tf_keras

KINDS = ("SGD", "Adam", "legacy.SGD")


def optimizer_of(kind: str) -> Any:
    if kind == "Adam":
        # Bias corrections and clipping come after the reduction.
        return tf_keras.optimizers.Adam(0.01, global_clipnorm=0.1)
    made = tf_keras.optimizers
    for name in kind.split("."):
        made = getattr(made, name)
    return made(0.05, momentum=0.9)


def network(seed: int = 3, dtype: str = "float32") -> Any:
    """As `keras_training.network`."""
    tf_keras.utils.set_random_seed(seed)
    return tf_keras.Sequential([
        tf_keras.Input((7,)),
        tf_keras.layers.Dense(11, activation="tanh", dtype=dtype, name="inner"),
        tf_keras.layers.Dense(3, dtype=dtype, name="outer"),
    ])  # fmt: skip


def fit(
    model: Any, optimizer: Any, data: Any, batch: int, eagerly: bool = False, **how: Any
) -> Any:
    model.compile(optimizer, loss="mse", run_eagerly=eagerly)
    return model.fit(*data, batch_size=batch, shuffle=False, verbose=0, **how)


def alone(steps: int, optimizer: Any, passes: int = 1, seed: int = 3) -> list[Any]:
    """What one rank learns with all samples."""
    import keras_training as training

    model = network(seed)
    # Not traced, which would take much longer than the steps.
    fit(model, optimizer, training.whole(steps), training.BATCH * hvd.size() * passes, eagerly=True)
    return list(model.get_weights())


def close(model: Any, wanted: list[Any], factor: float = 1.0) -> None:
    import keras_training as training

    for found, value in zip(model.get_weights(), wanted, strict=True):
        assert np.abs(found - value).max() <= factor * training.TOLERANCE


def all_bits(model: Any) -> int:
    """How many of the ranks' weights differ: 1 if they are equal."""
    mine = b"".join(weight.tobytes() for weight in model.get_weights())
    return len(set(hvd.allgather_object(mine)))


@on_tf_keras
@ranks(1, 2, 4)
def test_same_as_one_rank() -> None:
    import keras_training as training

    for kind in KINDS if hvd.size() == 2 else KINDS[:1]:
        root = hvd.size() - 1
        model = network(seed=hvd.rank())
        optimizer = hvd.DistributedOptimizer(optimizer_of(kind))
        assert isinstance(optimizer, type(optimizer_of(kind)))
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(root),
                     hvd.callbacks.MetricAverageCallback()]  # fmt: skip
        history = fit(model, optimizer, training.share(4), training.BATCH, callbacks=callbacks)
        assert all_bits(model) == 1
        assert len(set(hvd.allgather_object(history.history["loss"][0]))) == 1
        # Adam divides by the gradient's size.
        close(model, alone(4, optimizer_of(kind), seed=root), 20 if kind == "Adam" else 1)


@on_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", ["SGD", "legacy.SGD"])
def test_passes_and_local_layers(kind: str) -> None:
    import keras_training as training

    model = network()
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(kind), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    fit(model, optimizer, training.share(5), training.BATCH)
    # As in Horovod, passes are counted, not steps.
    assert int(optimizer.iterations) == 5 and int(optimizer._agg_helper.counter.numpy()) == 1
    x, y = training.whole(5)
    used = 4 * training.BATCH * hvd.size()
    other = network()
    batch = 2 * training.BATCH * hvd.size()
    fit(other, optimizer_of(kind), (x[:used], y[:used]), batch, eagerly=True)
    close(model, other.get_weights())
    model, start = network(), network().get_weights()
    partly = hvd.PartialDistributedOptimizer(
        optimizer_of(kind), local_layers=model.get_layer("inner"), compression=hvd.Compression.fp16
    )
    partly.register_local_var(model.get_layer("outer").bias)
    fit(model, partly, training.share(1), training.BATCH)
    found = hvd.allgather_object(model.get_weights())
    same = [bool((found[0][index] == found[1][index]).all()) for index in range(4)]
    assert same == [False, False, True, False]
    assert (found[0][2] != start[2]).any()


@on_tf_keras
@ranks(2)
@pytest.mark.parametrize("order", ["inside", "around"])
def test_overflow_on_one_rank_is_everybodys(order: str) -> None:
    scaling = tf_keras.mixed_precision.LossScaleOptimizer
    sgd = tf_keras.optimizers.SGD(1.0)
    if order == "inside":
        optimizer = hvd.DistributedOptimizer(scaling(sgd, initial_scale=8.0))
    else:
        optimizer = scaling(hvd.DistributedOptimizer(sgd), initial_scale=8.0)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    model = network()
    weights = model.trainable_weights

    def step(value: float) -> list[Any]:
        start = model.get_weights()
        optimizer.apply_gradients([(weight * 0 + value, weight) for weight in weights])
        return [now - before for now, before in zip(model.get_weights(), start, strict=True)]

    assert all(np.allclose(moved, -1.5, atol=1e-5) for moved in step(1.0 + hvd.rank()))
    assert all((moved == 0).all() for moved in step(float("inf") if hvd.rank() else 1.0))
    assert float(optimizer.loss_scale) == 4.0
    passes = scaling(
        hvd.DistributedOptimizer(tf_keras.optimizers.SGD(), backward_passes_per_step=2)
    )
    with pytest.raises(ValueError, match="loss scaling of tf_keras"):
        passes.apply_gradients([(weight * 0, weight) for weight in weights])


@contextmanager
def as_tf_keras() -> Iterator[None]:
    """As if `tf.keras` were tf_keras."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        yield
    finally:
        del os.environ["TF_USE_LEGACY_KERAS"]


@on_tf_keras
@ranks(1, 2)
# tf_keras writes the state of its legacy optimizers to .h5 files only.
@pytest.mark.parametrize(("kind", "suffix"), [("SGD", ".keras"), ("legacy.SGD", ".h5")])
def test_saving_and_loading(kind: str, suffix: str) -> None:
    import keras_training as training

    model = network()
    fit(model, hvd.DistributedOptimizer(optimizer_of(kind)), training.share(2), training.BATCH)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model{suffix}"
        model.save(path)
        if suffix == ".keras":
            with zipfile.ZipFile(path) as file:
                text = file.read("config.json").decode()
            assert "horoacc" not in text and "Distributed" not in text
            assert json.loads(text)["compile_config"]["optimizer"]["class_name"] == "SGD"
        hidden = {name: sys.modules[name] for name in sys.modules if name.startswith("horoacc")}
        sys.modules.update(dict.fromkeys(hidden))  # whoever imports one gets an ImportError
        try:
            plain = tf_keras.models.load_model(path)
        finally:
            sys.modules.update(hidden)
        with as_tf_keras():
            loaded = hvd.load_model(path, legacy_opts=True)
    assert type(plain.optimizer) is type(optimizer_of(kind))
    # It goes on with the state that was saved.
    loaded.fit(*training.share(2), batch_size=training.BATCH, shuffle=False, verbose=0)
    plain.fit(*training.whole(2), batch_size=training.BATCH * hvd.size(), shuffle=False, verbose=0)
    assert all_bits(loaded) == 1
    assert int(loaded.optimizer.iterations) == 4
    close(loaded, plain.get_weights())


@on_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", ["SGD", "legacy.SGD"])
def test_callbacks(kind: str) -> None:
    import keras_training as training

    model = network()
    optimizer = hvd.DistributedOptimizer(optimizer_of(kind))
    model.compile(optimizer, loss="mse", metrics=["accuracy"])
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    momenta: list[float] = []
    rates: list[float] = []

    class Watch(tf_keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            momenta.append(round(float(optimizer.momentum), 5))
            rates.append(round(float(optimizer.learning_rate), 5))

    best = hvd.callbacks.BestModelCheckpoint(monitor="accuracy")
    with tempfile.TemporaryDirectory() as folder:
        best.filepath = f"{folder}/best.keras"
        callbacks = [
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
            hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=1),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2), Watch(), best,
        ]  # fmt: skip
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            history = model.fit(
                *training.share(2), batch_size=training.BATCH, epochs=2, callbacks=callbacks
            )
        # Progress bars are rank 0's.
        assert ("Epoch 2/2" in printed.getvalue()) == (hvd.rank() == 0)
        assert os.path.exists(best.filepath) == (hvd.rank() == 0)
    assert rates == [0.075, 0.1, 0.05, 0.05]
    assert momenta == [1.35, 1.2, 0.45, 0.9]
    assert np.allclose(history.history["lr"], [0.1, 0.05])
    assert (state.epoch, state.batch, all_bits(model)) == (2, 0, 1)
    learned = model.get_weights()
    model.set_weights([weight + 1 for weight in learned])
    state.restore()
    for found, value in zip(model.get_weights(), learned, strict=True):
        assert (found == value).all()


@on_tf_keras
@ranks(2)
@pytest.mark.parametrize("kind", KINDS)
def test_state_of_the_frontend_of_tensorflow(kind: str) -> None:
    import keras_training as training

    import horoacc.tensorflow

    model = network(seed=hvd.rank())
    optimizer = horoacc.tensorflow.DistributedOptimizer(optimizer_of(kind))
    model.compile(optimizer, loss="mse")
    state = horoacc.tensorflow.elastic.TensorFlowKerasState(model, epoch=hvd.rank())
    state.sync()
    assert (state.epoch, all_bits(model)) == (0, 1)
    start = model.get_weights()
    model.fit(*training.share(1), verbose=0)
    state.restore()
    assert int(optimizer.iterations) == 0
    for found, value in zip(model.get_weights(), start, strict=True):
        assert (found == value).all()


@on_tf_keras
@ranks(2)
def test_what_cannot_work_says_so() -> None:
    import keras_training as training

    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(schedule))
    model = network()
    rate = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    with pytest.raises(ValueError, match="make it with a number"):
        fit(model, optimizer, training.share(1), training.BATCH, callbacks=[rate])
    model.compile(hvd.DistributedOptimizer(tf_keras.optimizers.SGD()), "mse", jit_compile=True)
    with pytest.raises(ValueError, match=r"jit_compile=False to model.compile"):
        model.fit(*training.share(1), verbose=0)
    with pytest.raises(ValueError, match="local layers must be"):
        hvd.PartialDistributedOptimizer(tf_keras.optimizers.SGD(), local_layers=["inner"])
    with pytest.raises(ValueError, match=r"Average or hvd.Sum"):
        hvd.DistributedOptimizer(tf_keras.optimizers.SGD(), op=hvd.Adasum)
    with pytest.raises(ValueError, match="no legacy optimizers"):
        hvd.load_model("model.keras", legacy_opts=True)
    assert not tf_keras.utils.is_interactive_logging_enabled() or hvd.rank() == 0


@pytest.mark.parametrize("env", [TORCH])
@ranks(1)
def test_another_backend_of_keras_is_told() -> None:
    from horoacc.keras import legacy

    given = type("Adam", (), {"__module__": "tf_keras.src.optimizers.adam"})()
    assert legacy.is_legacy(given) and not legacy.is_legacy(keras.optimizers.Adam())
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        legacy.require_tensorflow(given)
