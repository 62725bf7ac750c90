"""Elastic training with Keras: state, callbacks, and the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lazy import hvd, keras, mostly_on_torch, ranks


@mostly_on_torch
@ranks(1, 2, 4)
def test_state() -> None:
    import keras_training as training

    model = training.network(seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(training.sgd())
    model.compile(optimizer, loss="mse")
    state = hvd.elastic.KerasState(model, batch=hvd.rank(), epoch=7)
    assert state.optimizer is optimizer and optimizer.built
    own = training.values(model)
    state.sync()
    assert state.batch == 0
    assert len(training.all_bits(model)) == 1
    shared = training.values(model)
    assert hvd.rank() == 0 or (own[0] != shared[0]).any()
    model.fit(*training.share(2), verbose=0)
    state.batch = 5
    momenta = [keras.ops.convert_to_numpy(one).copy() for one in optimizer.variables]
    state.restore()
    assert (state.batch, state.epoch) == (0, 7)
    for found, value in zip(training.values(model), shared, strict=True):
        assert (found == value).all()
    assert int(optimizer.iterations) == 0
    restored = [keras.ops.convert_to_numpy(one) for one in optimizer.variables]
    assert any((a != b).any() for a, b in zip(momenta, restored, strict=True))
    model.fit(*training.share(1), verbose=0)
    state.batch = 3
    state.commit()
    learned = training.values(model)
    model.fit(*training.share(1), verbose=0)
    state.batch = 9
    state.restore()
    assert state.batch == 3
    for found, value in zip(training.values(model), learned, strict=True):
        assert (found == value).all()
    if hvd.size() > 1:
        ragged = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2 + hvd.rank())])
        with pytest.raises(Exception, match="shape"):
            hvd.elastic.KerasState(ragged).sync()


@mostly_on_torch
@ranks(1, 2, 4)
def test_state_with_an_optimizer_of_its_own() -> None:
    import keras_training as training

    model = training.network(seed=hvd.rank())
    optimizer = keras.optimizers.Adam(0.5 + hvd.rank())
    state = hvd.elastic.KerasState(model, optimizer=optimizer)
    state.sync()
    assert float(optimizer.learning_rate) == 0.5
    late = keras.Sequential([keras.layers.Dense(2)])
    state = hvd.elastic.KerasState(late, optimizer, epoch=1)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1 and not late.built


@mostly_on_torch
@ranks(2)
def test_a_model_that_only_rank_0_has_built() -> None:
    """As of a process that comes to a job whose `fit` has built the model."""
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, 0.5)), loss="mse")
    if hvd.rank() == 0:
        model(np.zeros((4, 5), np.float32))
    state = hvd.elastic.KerasState(model, epoch=0)
    state.sync()
    import keras_training as training

    assert len(training.all_bits(model)) == 1 and len(model.weights) == 4
    assert model.predict(np.zeros((7, 5), np.float32), verbose=0).shape == (7, 2)
    state.restore()
    if hvd.rank() == 1:
        model.add(keras.layers.Dense(1))
        with pytest.raises(ValueError, match="12 variables here and 10 on rank 0"):
            hvd.elastic.KerasState(model)._alike()
    else:
        state._alike()


@mostly_on_torch
@ranks(1, 2, 4)
def test_callbacks() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(training.sgd())
    model.compile(optimizer, loss="mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen: list[tuple[int, int]] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((state.epoch, state.batch))

    elastic = hvd.elastic
    callbacks = [
        elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=2), Watch(),
    ]  # fmt: skip
    model.fit(*training.share(5), batch_size=training.BATCH, verbose=0, callbacks=callbacks)
    assert (state.epoch, state.batch) == (1, 0)
    assert seen == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]
    assert state.commits == 3  # after the second and the fourth batch, and at the end
    model.fit(*training.share(1), epochs=3 - state.epoch, verbose=0, callbacks=callbacks)
    assert state.epoch == 3
    with pytest.raises(ValueError, match="must be positive"):
        elastic.CommitStateCallback(state, batches_per_commit=0)


class _Interrupt(Exception):
    """Ends a `fit` in the middle."""


@mostly_on_torch
@ranks(1)
@pytest.mark.parametrize("way", ["horovod", "initial", "rest"])
@pytest.mark.parametrize("order", [1, -1])
def test_fit_does_the_rest_of_an_epoch(way: str, order: int) -> None:
    import keras_training as training

    model = training.network()
    model.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse")
    # As Horovod's examples begin: a number that nobody has counted.
    state = hvd.elastic.KerasState(model, batch=100, epoch=0)
    done: list[list[int]] = []
    x, y = training.share(30)

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        left = 7
        stops_at = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            done.append([])

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.left -= 1
            if self.left < 0:
                raise _Interrupt

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done[-1].append(batch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if len(done) == self.stops_at:
                model.stop_training = True

    watch, elastic = Watch(), hvd.elastic
    callbacks = [watch, *[
        elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, 2),
    ][::order]]  # fmt: skip

    def fit(steps: int) -> None:
        done.clear()
        how: dict[str, Any] = {"epochs": 4 - state.epoch, "steps_per_epoch": steps}
        if way == "initial":
            how |= {"epochs": 4, "initial_epoch": state.epoch}
        elif way == "rest" and done_before:
            how |= {"epochs": 1, "steps_per_epoch": steps - state.batch}
        rows = steps * training.BATCH
        model.fit(x[:rows], y[:rows], batch_size=training.BATCH, shuffle=False, verbose=0,
                  callbacks=callbacks, **how)  # fmt: skip

    done_before = False
    with pytest.raises(_Interrupt):
        fit(4)
    assert [len(one) for one in done] == [4, 3]
    state.restore()
    assert (state.epoch, state.batch) == (1, 2)
    done_before = True
    if way == "rest":
        watch.left = 100
        fit(4)
        assert ([len(one) for one in done], state.epoch, state.batch) == ([2], 2, 0)
        return
    watch.left = 1
    with pytest.raises(_Interrupt):
        fit(4)
    state.restore()
    assert (state.epoch, state.batch) == (1, 2)  # that batch was not committed
    # Twice as many steps, as with half the ranks: half of them are done.
    watch.left, watch.stops_at = 100, 1
    fit(8)
    assert ([len(one) for one in done], state.epoch, state.batch) == ([4], 2, 0)
    watch.stops_at = 0
    fit(8)
    assert ([len(one) for one in done], state.epoch, state.batch) == ([8, 8], 4, 0)


@mostly_on_torch
@ranks(1, 2, 4)
def test_run_goes_back_to_the_last_commit() -> None:
    """An error of a collective on all ranks: the job is left, joined again, and goes on."""
    import keras_training as training

    model = training.network()
    model.compile(hvd.DistributedOptimizer(training.sgd()), loss="mse")
    state = hvd.elastic.KerasState(model, steps=0)
    failed = []

    @hvd.elastic.run
    def train(state: Any) -> int:
        while state.steps < 4:
            x, y = training.share(4)
            part = slice(state.steps * training.BATCH, (state.steps + 1) * training.BATCH)
            model.fit(x[part], y[part], batch_size=training.BATCH, shuffle=False, verbose=0)
            state.steps += 1
            if state.steps == 3 and not failed:
                failed.append(True)
                raise hvd.HorovodInternalError("as if a link had broken")
            if state.steps % 2 == 0:
                state.commit()
        return int(state.steps)

    assert train(state) == 4
    assert failed
    assert len(training.all_bits(model)) == 1
    training.close(model, training.alone(4))
    assert np.isfinite(training.values(model)[0]).all()
    with pytest.raises(ZeroDivisionError):  # what is no error of the job is nobody's to undo
        hvd.elastic.run(lambda state: 1 // 0)(state)


@mostly_on_torch
@ranks(1, 2)
def test_a_step_that_is_not_whole_begins_again() -> None:
    import keras_training as training

    model = training.network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    model.compile(optimizer, loss="mse")
    weights = model.trainable_weights
    state = hvd.elastic.KerasState(model)
    start = training.values(model)
    for back in (state.restore, state.sync):
        for _ in range(2 if hvd.rank() == 0 else 1):
            optimizer.apply(training.gradients(weights, 100.0), weights)
        back()
        assert int(optimizer._agg_helper.counter) == 0
    for _ in range(3):
        optimizer.apply(training.gradients(weights, 1.0), weights)
    for found, value in zip(training.values(model), start, strict=True):
        assert np.allclose(found, value - 3.0, atol=1e-5)
