"""Trains on handwritten digits with TensorFlow, in a job whose ranks may die, leave and come.

    horoaccrun -np 4 --min-np 1 python examples/elastic_tensorflow.py --checkpoints folder

A loop over a `tf.data.Dataset` around a step that `tf.function` compiles, with a distributed tape.
All ranks draw the same order of an epoch and part what is left of it, so that each digit is taken
once, whoever dies. A job that is killed whole begins behind the last epoch of its checkpoint.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tensorflow_digits import digits

import horoacc.tensorflow as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoints", type=Path, help="a folder for a checkpoint an epoch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16, help="of one rank")
    parser.add_argument("--batches-per-commit", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.025, help="of one rank")
    parser.add_argument("--samples", type=int, help="train on so many digits instead of all")
    return parser.parse_args()


def network() -> Any:
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def main() -> None:
    args = options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    tf.random.set_seed(1)
    x, y, x_held_out, y_held_out = digits()
    x, y = x[: args.samples], y[: args.samples]
    model = network()
    optimizer = tf.keras.optimizers.SGD(args.learning_rate * hvd.size(), momentum=0.9)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    epochs_done = tf.Variable(0)
    # It has the samples that all ranks have taken of this epoch.
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0, taken=0)
    state.register_reset_callbacks(
        [lambda: optimizer.learning_rate.assign(args.learning_rate * hvd.size())]
    )
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epochs_done)
    folder = args.checkpoints
    files = tf.train.CheckpointManager(checkpoint, folder, 2) if folder else None
    # Every process reads it, for the state of any may be the job's if all ranks are lost.
    if files and files.latest_checkpoint:
        checkpoint.restore(files.latest_checkpoint)
        state.epoch = int(epochs_done)
        state.save()

    def rest_of_epoch() -> Any:
        """This rank's share of what is left, in batches; all ranks get as many."""
        left = len(y) - state.taken
        shares = -(-left // hvd.size()) * hvd.size()  # some begin again, to come out even
        order = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(
            len(y), seed=1 + state.epoch, reshuffle_each_iteration=False
        )
        rest = order.skip(state.taken).repeat().take(shares)
        return rest.shard(hvd.size(), hvd.rank()).batch(args.batch_size)

    @tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 1)), tf.TensorSpec([None], tf.int64)])
    def step(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = losses(targets, model(inputs, training=True))
        grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    def accuracy() -> float:
        """Share of right answers; every rank looks at a part of the digits."""
        mine = slice(hvd.rank(), None, hvd.size())
        answers = tf.argmax(model(x_held_out[mine], training=False), 1)
        right = tf.reduce_sum(tf.cast(answers == y_held_out[mine], tf.int32))
        return int(hvd.allreduce(right, op=hvd.Sum, name="right")) / len(y_held_out)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < args.epochs:
            for inputs, targets in rest_of_epoch():
                step(inputs, targets)
                state.taken += len(targets) * hvd.size()
                state.batch += 1
                if state.batch % args.batches_per_commit == 0:
                    state.commit()
            state.commit()  # a death from here on goes back to this place, with nothing left
            if hvd.rank() == 0 and files:
                epochs_done.assign(state.epoch + 1)
                files.save(state.epoch + 1)
            reached = accuracy()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch + 1}: accuracy {100 * reached:.2f} %, "
                      f"{hvd.size()} ranks", flush=True)  # fmt: skip
            state.epoch, state.batch, state.taken = state.epoch + 1, 0, 0
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
