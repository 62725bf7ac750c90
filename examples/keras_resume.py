"""Trains as keras_digits.py does, and goes on where a run that was killed has stopped.

    KERAS_BACKEND=torch horoaccrun -np 2 python examples/keras_resume.py --checkpoint digits.keras

Rank 0 writes a checkpoint after each epoch. The same command starts the job again, also with
another number of ranks, and all ranks begin at the epoch behind the checkpoint's.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import keras
import numpy as np
from keras_digits import digits, network

import horoacc.keras as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    return parser.parse_args()


def save(path: Path, model: keras.Model) -> None:
    """At any moment, and after a kill at any moment, there is the old file or the whole new one."""
    part = path.with_suffix(".part.keras")
    model.save(part)  # with its optimizer
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def compiled(epochs: int, steps: int) -> keras.Model:
    model = network()
    rate = keras.optimizers.schedules.CosineDecay(0.1, epochs * steps)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
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
    steps = len(y) // args.batch_size
    # Rank 0 alone needs the file; the callback gives the others what it has read.
    if hvd.rank() == 0 and args.checkpoint.exists():
        model = hvd.load_model(args.checkpoint)
    else:
        model = compiled(args.epochs, steps)
    epochs_done = hvd.broadcast_object(int(model.optimizer.iterations) // steps, root_rank=0)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    share = args.batch_size // hvd.size()
    for epoch in range(epochs_done, args.epochs):
        # All ranks draw the same order and take their shares of it. Seeded by the epoch, it needs
        # no state. What a rank draws for itself would be seeded by epoch and rank.
        order = np.random.default_rng([1, epoch]).permutation(len(y))
        mine = order[hvd.rank() :: hvd.size()][: steps * share]
        history = model.fit(
            x[mine], y[mine], batch_size=share, shuffle=False, callbacks=callbacks, verbose=0,
            initial_epoch=epoch, epochs=epoch + 1,
        )  # fmt: skip
        if hvd.rank() == 0:
            save(args.checkpoint, model)
            print(f"epoch {epoch + 1}: loss {history.history['loss'][-1]:.6f}", flush=True)

    part = slice(hvd.rank(), None, hvd.size())
    answers = model.predict(x_held_out[part], verbose=0).argmax(1)
    right = hvd.allreduce(int((answers == y_held_out[part]).sum()), name="right", op=hvd.Sum)
    if hvd.rank() == 0:
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights()))
        print(f"accuracy {100 * int(right) / len(y_held_out):.2f} % on {len(y_held_out)} held-out "
              f"digits, {hvd.size()} ranks, parameters {digest.hexdigest()[:12]}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
