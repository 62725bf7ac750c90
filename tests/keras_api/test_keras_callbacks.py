"""Horovod's callbacks for `fit`."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, on_tensorflow, ranks


@mostly_on_torch
@ranks(1, 2, 4)
def test_broadcast_global_variables() -> None:
    import keras_training as training

    root = hvd.size() - 1
    model = training.network(seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(training.sgd())
    optimizer.learning_rate = 0.05 + hvd.rank()  # state of the optimizer counts too
    model.compile(optimizer, loss="mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root, device="/cpu:0")
    training.fit(model, optimizer, training.share(3), callbacks=[callback])
    assert callback.broadcast_done
    # Before the first step: what follows is what the root alone would have learned.
    alone = training.network(seed=root)
    slow = keras.optimizers.SGD(0.05 + root, momentum=0.9)
    training.fit_alone(alone, slow, training.whole(3), training.BATCH * hvd.size())
    # Rates are up to 3.05, that is 61 times those of the tolerance.
    training.close(model, alone, training.TOLERANCE * 60)
    if hvd.size() > 1:
        nobody = hvd.callbacks.BroadcastGlobalVariablesCallback(hvd.size())
        with pytest.raises(Exception, match="root"):
            training.fit(model, optimizer, training.share(1), callbacks=[nobody])


@on_both
@ranks(2)
def test_variables_that_stay_local() -> None:
    import keras_training as training

    model = training.network(seed=hvd.rank())
    start = training.values(model)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=model.get_layer("inner").weights
    )
    frozen = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    training.fit(model, frozen, training.share(1), callbacks=[callback])
    wanted = training.values(training.network(seed=0))
    found = training.values(model)
    assert (found[0] == start[0]).all() and (found[2] == wanted[2]).all()
    assert hvd.rank() == 0 or (found[0] != wanted[0]).any()


@on_both
@ranks(2)
def test_model_that_is_built_by_its_first_batch() -> None:
    import keras_training as training

    class Late(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    training.seed_weights(hvd.rank())
    model = Late()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse")
    # What Keras calls, for a model that it could not build before.
    callback.set_model(model)
    callback.on_train_begin()
    assert not callback.broadcast_done
    model(training.share(1, "float32")[0])
    callback.on_train_batch_end(0)
    assert callback.broadcast_done
    assert len(training.all_bits(model)) == 1


@mostly_on_torch
@ranks(1, 2, 4)
def test_metric_average() -> None:
    callback = hvd.callbacks.MetricAverageCallback(device="/cpu:0")
    logs = {"loss": 1.0 + hvd.rank(), "accuracy": float(hvd.rank() == 0)}
    callback.on_epoch_end(0, logs)
    assert logs == {"loss": 1.0 + (hvd.size() - 1) / 2, "accuracy": 1.0 / hvd.size()}
    callback.on_epoch_end(1, {})
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"rank 1 has metrics \['accuracy', 'loss'\]"):
            callback.on_epoch_end(2, dict(logs) if hvd.rank() else {"loss": 1.0})
        with pytest.raises(ValueError, match=r"\['f1 of shape \(3,\)'\] and rank 0 \['f1'\]"):
            callback.on_epoch_end(3, {"f1": np.ones(3) if hvd.rank() else 1.0})
    of_classes = {"f1": keras.ops.convert_to_tensor([1.0, 2.0, 6.0 * hvd.rank()]), "loss": 2.0}
    callback.on_epoch_end(4, of_classes)
    assert of_classes["f1"].tolist() == [1.0, 2.0, 3.0 * (hvd.size() - 1)]
    assert of_classes["loss"] == 2.0
    with pytest.raises(ValueError, match="'text' is no number: 'x'"):
        callback.on_epoch_end(5, {"text": "x"})


@on_both
@ranks(2)
def test_metric_average_comes_before_what_is_behind_it() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd())
    callbacks = [hvd.callbacks.MetricAverageCallback()]
    model.compile(optimizer, loss="mse")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        history = model.fit(
            *training.share(3), batch_size=training.BATCH, callbacks=callbacks, epochs=2
        )
    losses = hvd.allgather_object(history.history["loss"])
    assert losses[0] == losses[1] and len(losses[0]) == 2
    # Progress bars are rank 0's.
    assert ("Epoch 2/2" in printed.getvalue()) == (hvd.rank() == 0)
    assert hvd.rank() == 0 or not printed.getvalue()


def rates(
    callback: Any, epochs: int, kind: str = "SGD", **given: Any
) -> tuple[list[float], list[float], list[float]]:
    """The rate and the momentum within each batch, and the rates that were logged."""
    import keras_training as training

    within: list[tuple[float, float]] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
            within.append((rate, float(optimizer.momentum)))

    model = training.network(dtype="float32")
    optimizer = getattr(keras.optimizers, kind)(0.5, momentum=0.8)
    history = training.fit(
        model, optimizer, training.share(2, "float32"), epochs=epochs,
        callbacks=[callback, Watch()], **given,
    )  # fmt: skip
    assert float(model.optimizer.momentum) == 0.8
    return [rate for rate, _ in within], [one for _, one in within], history.history["lr"]


@on_both
@ranks(1)
def test_learning_rate_schedule() -> None:
    callback = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.25, start_epoch=1, end_epoch=2)
    found, momenta, logged = rates(callback, 3)
    assert found == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert momenta == pytest.approx([0.8, 0.8, 0.4, 0.8, 0.8, 0.8])
    assert logged == [0.5, 0.25, 0.25]
    smooth = hvd.callbacks.LearningRateScheduleCallback(
        0.5, lambda epoch: 1 + epoch, staircase=False, momentum_correction=False, steps_per_epoch=2
    )
    found, momenta, _ = rates(smooth, 2)
    assert found == [0.5, 0.75, 1.0, 1.25]
    assert momenta == [0.8] * 4
    with pytest.raises(ValueError, match="`initial_lr` is required"):
        hvd.callbacks.LearningRateScheduleCallback(None, 1.0)
    unknown = hvd.callbacks.LearningRateScheduleCallback(1.0, lambda epoch: 1.0, staircase=False)
    unknown.set_params({"steps": None})
    with pytest.raises(ValueError, match="steps_per_epoch parameter to the LearningRateSchedule"):
        unknown.on_train_begin()


@on_both
@ranks(1)
def test_momentum_of_rmsprop_is_corrected() -> None:
    callback = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.25, start_epoch=1)
    found, momenta, _ = rates(callback, 2, "RMSprop")
    assert found == [0.5, 0.5, 0.25, 0.25]
    assert momenta == pytest.approx([0.8, 0.8, 0.4, 0.8])


@mostly_on_torch
@ranks(1, 2, 4)
def test_rate_of_a_schedule_cannot_be_set() -> None:
    import keras_training as training

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    callback = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5)
    with pytest.raises(ValueError, match="make it with a number"):
        training.fit(
            training.network(), keras.optimizers.SGD(schedule), training.share(1),
            callbacks=[callback],
        )  # fmt: skip


@mostly_on_torch
@ranks(1, 2, 4)
def test_learning_rate_warmup() -> None:
    size = hvd.size()
    callback = hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2, verbose=1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        found, _, logged = rates(callback, 3)
    wanted = [0.5 / size * (1 + (size - 1) * part / 4) for part in (1, 2, 3, 4, 4, 4)]
    assert found == pytest.approx(wanted, rel=1e-6)
    assert logged == pytest.approx([wanted[1], 0.5, 0.5], rel=1e-6)
    assert "Epoch 2: finished gradual learning rate warmup to 0.5." in printed.getvalue()


@on_tensorflow
@ranks(2)
def test_warmup_is_over_where_several_batches_are_run_at_once() -> None:
    import keras_training as training

    model = training.network()
    model.compile(training.sgd(), loss="mse", steps_per_execution=2)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.5, warmup_epochs=2)
    found = model.fit(*training.share(3), batch_size=training.BATCH, epochs=3, verbose=0,
                      callbacks=[warmup])  # fmt: skip
    assert found.history["lr"] == pytest.approx([0.375, 0.5, 0.5], rel=1e-6)


@on_tensorflow
@ranks(1)
@pytest.mark.parametrize("kind", ["SGD", "RMSprop"])
def test_corrected_momentum_reaches_the_graph(kind: str) -> None:
    """A graph that has been made with the number would go on with it."""
    import keras_training as training

    def trained(eagerly: bool) -> Any:
        model = training.network()
        optimizer = getattr(keras.optimizers, kind)(0.05, momentum=0.9)
        model.compile(optimizer, loss="mse", run_eagerly=eagerly)
        for callbacks in (
            [], [hvd.callbacks.LearningRateScheduleCallback(0.05, lambda epoch: 0.25 + epoch)]
        ):  # fmt: skip
            model.fit(*training.share(2), batch_size=training.BATCH, shuffle=False, verbose=0,
                      epochs=3, callbacks=callbacks)  # fmt: skip
        return model

    training.close(trained(False), trained(True))


@mostly_on_torch
@ranks(1, 2, 4)
@pytest.mark.parametrize("weights_only", [False, True])
def test_best_model_checkpoint(weights_only: bool) -> None:
    import keras_training as training

    if weights_only:
        from horoacc.keras.callbacks import RankZeroCheckpoint

        best = RankZeroCheckpoint("loss", 0, True, "auto", "epoch")
        suffix = ".weights.h5"
    else:
        best = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="min")
        suffix = ".keras"
    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd())
    with pytest.raises(ValueError, match="set its `filepath`"):
        training.fit(model, optimizer, training.share(1), callbacks=[best])
    with tempfile.TemporaryDirectory() as folder:
        best.filepath = f"{folder}/best{suffix}"
        training.fit(model, optimizer, training.share(1), callbacks=[best])
        assert Path(best.filepath).exists() == (hvd.rank() == 0)
        after = training.values(model)
        if hvd.rank() == 0 and not weights_only:
            saved = keras.models.load_model(best.filepath)
            for found, value in zip(training.values(saved), after, strict=True):
                assert (found == value).all()
        assert np.isfinite(after[0]).all()


@on_both
@ranks(2)
def test_settings_are_tuned_during_fit(tmp_path: Path) -> None:
    import keras_training as training

    from horoacc import process, settings
    from horoacc.autotune import Follower

    os.environ["HOROACC_CACHE_DIR"] = str(tmp_path)
    process._state.tuner = tuner = Follower(
        {**settings.read(os.environ), "autotune_warmup_samples": 0}
    )
    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd())
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    training.fit(model, optimizer, training.share(100), callbacks=[callback])
    assert tuner._left > 0
    if hvd.rank() == 0:
        assert tuner._tuner is not None and tuner._tuner.trials
        for trial in tuner._tuner.trials:  # no plan reduces the gradients
            assert trial.values.fusion_threshold == trial.against.fusion_threshold
            assert trial.values.last_arriver_bytes != trial.against.last_arriver_bytes
    process._state.tuner = None
