"""Trains a network of Keras on handwritten digits, in a job whose ranks may die, leave and come.

    KERAS_BACKEND=torch horoaccrun -np 4 --min-np 1 python examples/elastic_keras.py

KERAS_BACKEND is `tensorflow` or `torch`. The batches are those of the whole job; each rank takes a
share of each. So an epoch has as many batches whatever the ranks are, `state.batch` says where it
goes on, and each digit is taken once. A job that is killed whole begins behind the last epoch of
its checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras_digits import digits, network
from keras_resume import save

import horoacc.keras as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoint", type=Path, help="where rank 0 writes after each epoch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--batches-per-commit", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--samples", type=int, help="train on so many digits instead of all")
    return parser.parse_args()


class RestOfEpoch(keras.utils.PyDataset):
    """This rank's shares of the batches of an epoch that are left."""

    def __init__(self, x: Any, y: Any, steps: int, epoch: int, done: int) -> None:
        super().__init__()
        self._x, self._y = x, y
        # All ranks draw the same order. The batches differ by one sample, and none is tiny.
        order = np.random.default_rng([1, epoch]).permutation(len(y))
        self._batches = np.array_split(order, steps)[done:]
        # Keras reads ahead, in a thread of its own that a reset does not stop.
        self._rank, self._size = hvd.rank(), hvd.size()

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> tuple[Any, Any, Any]:
        whole = self._batches[number]
        mine = whole[self._rank :: self._size]
        # With a sum as the loss, so that the mean over the ranks is that over the whole batch.
        weight = np.full(len(mine), self._size / len(whole), np.float32)
        return self._x[mine], self._y[mine], weight


class Checkpoint(keras.callbacks.Callback):
    """Rank 0 writes the model with its optimizer after each epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hvd.rank() == 0:
            save(self._path, self.model)


def made(args: argparse.Namespace) -> Any:
    # Every process reads it, for the state of any may be the job's if all ranks are lost.
    if args.checkpoint and args.checkpoint.exists():
        return hvd.load_model(args.checkpoint)
    model = network()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(args.learning_rate, momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        metrics=["accuracy"],
    )  # fmt: skip
    # Momenta exist from here on, so that those of rank 0 can be given to all.
    model.optimizer.build(model.trainable_variables)
    return model


def main() -> None:
    args = options()
    hvd.init()
    keras.utils.set_random_seed(1)
    x, y, x_held_out, y_held_out = digits()
    x, y = x[: args.samples], y[: args.samples]
    steps = -(-len(y) // args.batch_size)
    model = made(args)
    state = hvd.elastic.KerasState(model, epoch=int(model.optimizer.iterations) // steps, batch=0)
    warmup = hvd.callbacks.LearningRateWarmupCallback(
        args.learning_rate, warmup_epochs=2, steps_per_epoch=steps
    )

    def tell() -> None:
        if hvd.rank() == 0:
            print(f"epoch {state.epoch + 1} goes on with {hvd.size()} ranks", flush=True)

    state.register_reset_callbacks([tell])
    # The metrics' average meets a death while rank 0 writes, and the epoch's end is done again.
    callbacks = [Checkpoint(args.checkpoint)] if args.checkpoint else []
    callbacks += [
        hvd.callbacks.MetricAverageCallback(),
        warmup,
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, args.batches_per_commit),
    ]

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            part = slice(hvd.rank(), None, hvd.size())
            epoch = state.epoch
            history = model.fit(
                RestOfEpoch(x, y, steps, epoch, int(state.batch)),
                shuffle=False,  # another order of the batches, and `state.batch` would not do
                initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks, verbose=0,
                validation_data=(x_held_out[part], y_held_out[part]),
            )  # fmt: skip
            if hvd.rank() == 0:
                reached = 100 * history.history["val_accuracy"][-1]
                print(f"epoch {epoch + 1}: accuracy {reached:.2f} %, {hvd.size()} ranks",
                      flush=True)  # fmt: skip

    train(state)


if __name__ == "__main__":
    main()
