"""Trains a small network of Keras on real handwritten digits, on one rank or many.

    KERAS_BACKEND=torch horoaccrun -np 2 python examples/keras_digits.py

Three lines make it a job of many ranks; they are marked. KERAS_BACKEND is `tensorflow` or `torch`.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import horoacc.keras as hvd

TEST_SHARE = 5  # every fifth digit is held out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    # For the test that sees the ranks drift apart.
    parser.add_argument("--no-communication", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels to train on, then those held out."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)[order], labels[order]
    held_out = np.arange(len(y)) % TEST_SHARE == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> int:
    args = options()
    hvd.init()  # 1
    keras.utils.set_random_seed(1 + hvd.rank())
    x, y, x_held_out, y_held_out = digits()
    model = network()
    optimizer = keras.optimizers.SGD(args.learning_rate, momentum=0.9)
    callbacks = [hvd.callbacks.LearningRateWarmupCallback(args.learning_rate, warmup_epochs=2)]
    if not args.no_communication:
        optimizer = hvd.DistributedOptimizer(optimizer)  # 2
        callbacks += [
            hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),  # 3
            hvd.callbacks.MetricAverageCallback(),
        ]
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )  # fmt: skip
    # Each rank has its share of the digits, of the same length: all must take as many steps.
    even = len(y) // hvd.size() * hvd.size()
    mine = slice(hvd.rank(), even, hvd.size())
    model.fit(
        x[mine], y[mine], batch_size=args.batch_size // hvd.size(), epochs=args.epochs,
        callbacks=callbacks, verbose=2,
    )  # fmt: skip

    # Every rank looks at a part of the digits.
    part = slice(hvd.rank(), None, hvd.size())
    answers = model.predict(x_held_out[part], verbose=0).argmax(1)
    right = hvd.allreduce(int((answers == y_held_out[part]).sum()), name="right", op=hvd.Sum)
    sums = hvd.allgather_object([float(np.abs(weight).sum()) for weight in model.get_weights()])
    if hvd.rank() == 0:
        accuracy = f"accuracy {100 * int(right) / len(y_held_out):.2f} %"
        where = f"{len(y_held_out)} held-out digits, {hvd.size()} ranks"
        print(f"{accuracy} on {where}, Keras on {keras.backend.backend()}", flush=True)
    different = [rank for rank, others in enumerate(sums) if others != sums[0]]
    if different:
        if hvd.rank() == 0:
            print(f"the parameters of ranks {different} are not those of rank 0: the ranks did "
                  "not train the same model", file=sys.stderr, flush=True)  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
