"""A worker that trains with `model.fit`: keras_worker.py FOLDER BATCHES SECONDS.

Keras uses TensorFlow or torch as KERAS_BACKEND says, or is tf_keras with TF_USE_LEGACY_KERAS. What
is noted of a batch is what the batch used; batches are numbered over all epochs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic_plan import PLAN, happens, note
from regression import ADAM, FEATURES, MOMENTUM, RATE, late_gradient, model_of, samples

FOLDER, BATCHES, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
OPTIONS = json.loads((FOLDER / "options").read_text())
STEPS = OPTIONS["steps"]
EPOCHS = BATCHES // STEPS
happens(worker=int(os.environ["HOROACC_WORKER"]))

import numpy as np  # noqa: E402

import horoacc  # noqa: E402

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras

    import horoacc.tensorflow.keras as hvd

    keras.backend.set_floatx("float64")
else:
    import keras

    import horoacc.keras as hvd

    keras.config.set_floatx("float64")

hvd.init()
place = {"batch": 0, "rank": hvd.rank()}


def loss(t: Any, found: Any) -> Any:
    """The mean squared error; what the plan has for the middle of a step happens here."""
    if os.environ.get("KERAS_BACKEND") == "torch":
        happens(**place, at="step")
        return ((found - t) ** 2).mean()
    import tensorflow as tf

    return tf.reduce_mean((found - t) ** 2)


def inside() -> None:
    if any(one.get("at") == "step" and one.get("batch") == place["batch"] for one in PLAN):
        time.sleep(0.2)  # on all ranks, so that the other gradient is reduced everywhere
    happens(**place, at="step")


def feed(batch: int) -> Iterator[tuple[Any, Any]]:
    """This rank's batches after one."""
    rank = hvd.rank()
    while True:
        batch += 1
        yield samples(batch, rank)


late = (lambda x: x) if os.environ.get("KERAS_BACKEND") == "torch" else late_gradient(inside)
model = model_of(keras, late)
optimizer = {
    "sgd": lambda: keras.optimizers.SGD(RATE, MOMENTUM),
    "adam": lambda: keras.optimizers.Adam(**ADAM),
}[OPTIONS.get("optimizer", "sgd")]()
how = OPTIONS.get("distributed", {})
model.compile(hvd.DistributedOptimizer(optimizer, **how), loss=loss, **OPTIONS.get("compile", {}))
if OPTIONS.get("trains"):
    # As Horovod's example makes the optimizer's variables: on newcomers now, while the others train
    # and, in a reset callback, on all ranks together.
    model.fit(feed(0), steps_per_epoch=1, verbose=0)
    for variable in model.optimizer.variables:
        if "learning_rate" not in variable.path:
            variable.assign(keras.ops.zeros_like(variable))
# Each rank begins elsewhere: rank 0's values count.
model.set_weights(np.split(np.random.default_rng(hvd.rank()).standard_normal((FEATURES, 1)), 2))
state = hvd.elastic.KerasState(model, batch=OPTIONS.get("first", 0), epoch=0)


def weights() -> list[float]:
    return [float(number) for half in model.get_weights() for number in half[:, 0]]


class Steps(keras.callbacks.Callback):
    """Notes each batch, and does what the plan has for its ends."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        number = self.first + self.done + 1
        size = OPTIONS.get("sizes", {}).get(str(number), 0)
        while size and hvd.size() != size:
            horoacc.barrier()  # so that all ranks make as many checks
            time.sleep(0.05)
            state.check_host_updates()
        place.update(batch=number, rank=hvd.rank())
        happens(**place, at="begin")
        self.before = weights()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        happens(**place, at="applied")
        note("batch", **place, epoch=hvd.elastic.epoch(), size=hvd.size(), before=self.before,
             weight=weights())  # fmt: skip
        time.sleep(SECONDS)

    def begin(self, first: int) -> None:
        self.first, self.done = first, 0


class Committed(keras.callbacks.Callback):
    """After the commit."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not every:
            state.check_host_updates()
        happens(**place, at="committed")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        happens(rank=hvd.rank(), epoch=state.epoch, at="epoch")
        note("epoch", epoch=state.epoch, number=epoch, rank=hvd.rank())
        if OPTIONS.get("ends"):  # all ranks, once one has seen it
            state.commit()  # for an error in this reduction is none of a gradient's
            seen = float((FOLDER / "end").exists())
            if hvd.allreduce(seen, name="ends", op=hvd.Sum) > 0:
                model.stop_training = True


steps, every = Steps(), OPTIONS.get("commit_every", 1)
callbacks = [
    steps,
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
    *([hvd.elastic.CommitStateCallback(state, every)] if every else []),
    Committed(),
]
if OPTIONS.get("order") == "commit first":  # as in Horovod's documentation
    callbacks[1], callbacks[3] = callbacks[3], callbacks[1]
if OPTIONS.get("averages", True):
    callbacks.insert(1, hvd.callbacks.MetricAverageCallback())


@hvd.elastic.run
def train(state: Any) -> None:
    done = state.epoch * STEPS + (state.batch if state.batch != OPTIONS.get("first", 0) else 0)
    steps.begin(done)
    how = {"verbose": 0, "callbacks": callbacks}
    if OPTIONS.get("fit") == "rest":
        while state.epoch < EPOCHS:
            model.fit(
                feed(state.epoch * STEPS + state.batch), steps_per_epoch=STEPS - state.batch,
                initial_epoch=state.epoch, epochs=state.epoch + 1, **how,
            )  # fmt: skip
    elif OPTIONS.get("fit") == "initial":
        model.fit(
            feed(done), steps_per_epoch=STEPS, initial_epoch=state.epoch, epochs=EPOCHS, **how
        )
    else:
        model.fit(feed(done), steps_per_epoch=STEPS, epochs=EPOCHS - state.epoch, **how)


note("begin", weight=weights(), rank=hvd.rank())
resets: list[int] = []


def on_state_reset() -> None:
    resets.append(hvd.size())
    happens(rank=hvd.rank(), epoch=hvd.elastic.epoch(), at="reset")
    if OPTIONS.get("trains"):
        model.fit(feed(0), steps_per_epoch=1, verbose=0)
        state.restore()


state.register_reset_callbacks([on_state_reset])
train(state)
note("end", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, batch=int(state.batch),
     weight=weights(), resets=resets, iterations=int(model.optimizer.iterations))  # fmt: skip
hvd.shutdown()
