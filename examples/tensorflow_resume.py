"""Trains as tensorflow_digits.py does, and goes on where a run that was killed has stopped.

    horoaccrun -np 2 python examples/tensorflow_resume.py --checkpoint digits.npz

Rank 0 writes a checkpoint after each epoch. The same command starts the job again, also with
another number of ranks, and all ranks begin at the epoch behind the checkpoint's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_digits import accuracy, digits, logits, parameter_hash, weights

import horoacc.tensorflow as hvd


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    return parser.parse_args()


def save(path: Path, variables: list[Any]) -> None:
    """At any moment, and after a kill at any moment, there is the old file or the whole new one."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        np.savez(file, *[variable.numpy() for variable in variables])
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def main() -> None:
    args = options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    tf.random.set_seed(1)
    x, y, x_held_out, y_held_out = digits()
    model = weights()
    momenta = [tf.Variable(tf.zeros_like(variable)) for variable in model]
    epochs_done = tf.Variable(0)
    state = [*model, *momenta, epochs_done]

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any, whole: Any, rate: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(model, x))
            loss = tf.reduce_sum(losses) / whole
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        for variable, momentum, grad in zip(
            model, momenta, tape.gradient(loss, model), strict=True
        ):
            momentum.assign(0.9 * momentum + grad)
            variable.assign_sub(rate * momentum)
        return tf.reduce_sum(losses)

    # Rank 0 alone needs the file; the others get from it what it has read.
    if hvd.rank() == 0 and args.checkpoint.exists():
        with np.load(args.checkpoint) as saved:
            for variable, name in zip(state, saved.files, strict=True):
                variable.assign(saved[name])
    hvd.broadcast_variables(state, root_rank=0)

    for epoch in range(int(epochs_done), args.epochs):
        rate = 0.1 * (1 + np.cos(np.pi * epoch / args.epochs)) / 2
        total = 0.0
        # All ranks draw the same order and take their shares of it. Seeded by the epoch, it needs
        # no state. What a rank draws for itself would be seeded by epoch and rank.
        shuffled = np.random.default_rng([1, epoch]).permutation(len(y))
        for begin in range(0, len(y), args.batch_size):
            chosen = shuffled[begin : begin + args.batch_size]
            mine = chosen[hvd.rank() :: hvd.size()]
            whole, lr = tf.constant(float(len(chosen))), tf.constant(rate, tf.float32)
            total += float(step(x[mine], y[mine], whole, lr))
        epochs_done.assign_add(1)
        mean = float(hvd.allreduce(tf.constant(total), name="loss", op=hvd.Sum)) / len(y)
        if hvd.rank() == 0:
            save(args.checkpoint, state)
            print(f"epoch {epoch + 1}: loss {mean:.6f}", flush=True)

    reached = accuracy(model, x_held_out, y_held_out)
    if hvd.rank() == 0:
        print(f"accuracy {100 * reached:.2f} % on {len(y_held_out)} held-out digits, "
              f"{hvd.size()} ranks, parameters {parameter_hash(model)[:12]}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
