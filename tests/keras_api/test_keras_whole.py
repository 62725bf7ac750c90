"""One training with all that a script may use of `hvd`, in a graph of TensorFlow and on torch."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from lazy import hvd, keras, on_both, ranks

PASSES, STEPS, EPOCHS = 2, 4, 2


@on_both
@ranks(1, 2, 4)
def test_a_whole_training() -> None:
    """The ranks together learn what one would, through every callback, and go on from the file."""
    import keras_training as training

    rate = 0.05
    root = hvd.size() - 1
    model = training.network(seed=hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9), backward_passes_per_step=PASSES,
        average_aggregated_gradients=True,
    )  # fmt: skip
    model.compile(optimizer, loss=keras.losses.MeanSquaredError())
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks, elastic = hvd.callbacks, hvd.elastic
    best = callbacks.BestModelCheckpoint(monitor="loss", mode="min")

    @elastic.run
    def train(state: Any) -> Any:
        return model.fit(
            *training.share(STEPS), batch_size=training.BATCH, shuffle=False, verbose=0,
            epochs=EPOCHS - state.epoch, callbacks=[
                callbacks.BroadcastGlobalVariablesCallback(root),
                callbacks.MetricAverageCallback(),
                callbacks.LearningRateWarmupCallback(
                    rate, warmup_epochs=1, momentum_correction=False
                ),
                callbacks.LearningRateScheduleCallback(
                    rate, 0.5, start_epoch=1, momentum_correction=False
                ),
                elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
                elastic.CommitStateCallback(state, batches_per_commit=STEPS), best,
            ],
        )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        best.filepath = f"{folder}/best.keras"
        history = train(state).history
        assert (state.epoch, state.batch) == (EPOCHS, 0)
        assert int(keras.ops.convert_to_numpy(optimizer._agg_helper.counter)) == 0
        assert int(optimizer.iterations) == EPOCHS * STEPS // PASSES
        assert len(training.all_bits(model)) == 1
        assert history["lr"] == [np.float32(rate), np.float32(rate / 2)]
        # `sync` gave all ranks the weights of rank 0, before `fit` gave them those of the root.
        alone, losses = alone_with(rate)
        training.close(model, alone)
        assert np.allclose(history["loss"], losses, rtol=1e-5)
        assert len(set(map(tuple, hvd.allgather_object(history["loss"])))) == 1
        if hvd.rank() == 0:
            loaded = hvd.load_model(best.filepath)
            for found, value in zip(training.values(loaded), training.values(model), strict=True):
                assert (found == value).all()
    learned = training.values(model)
    for weight in model.weights:
        weight.assign(weight + 1.0)
    state.restore()
    for found, value in zip(training.values(model), learned, strict=True):
        assert (found == value).all()


def alone_with(rate: float) -> tuple[Any, list[float]]:
    """What one rank learns with all samples, batch by batch, and its losses."""
    import keras_training as training

    size = hvd.size()
    model = training.network(seed=0)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), run_eagerly=True)
    x, y = training.whole(STEPS)
    rows = training.BATCH * size
    # The warm-up sets the rate at every batch; a step takes that of its last.
    rates = [rate / size * (1 + (size - 1) * (batch + 1) / STEPS) for batch in range(STEPS)]
    losses = []
    for epoch in range(EPOCHS):
        found = []
        for first in range(0, STEPS, PASSES):
            for batch in range(first, first + PASSES):
                part = slice(batch * rows, (batch + 1) * rows)
                found.append(float(model.evaluate(x[part], y[part], rows, verbose=0)))
            optimizer.learning_rate = rates[first + PASSES - 1] if epoch == 0 else rate / 2
            part = slice(first * rows, (first + PASSES) * rows)
            model.fit(x[part], y[part], batch_size=PASSES * rows, shuffle=False, verbose=0)
        losses.append(float(np.mean(found)))
    return model, losses
