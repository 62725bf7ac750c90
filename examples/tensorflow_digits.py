"""Trains a small network on real handwritten digits with TensorFlow, on one rank or many.

    horoaccrun -np 2 python examples/tensorflow_digits.py

A loop of its own, compiled by `tf.function`, with a distributed tape. The batch size is that of the
whole job, so every number of ranks computes the same gradients as one rank does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horoacc.tensorflow as hvd

TEST_SHARE = 5  # every fifth digit is held out


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def digits() -> tuple[Any, Any, Any, Any]:
    """Images and labels to train on, then those held out."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = (images.astype(np.float32) / 16).reshape(-1, 8, 8, 1)[order]
    y = labels.astype(np.int64)[order]
    held_out = np.arange(len(y)) % TEST_SHARE == 0
    return x[~held_out], y[~held_out], x[held_out], y[held_out]


def weights() -> list[Any]:
    """Two convolutions and two dense layers, each with its bias."""
    shapes = [(3, 3, 1, 16), (3, 3, 16, 32), (32 * 16, 64), (64, 10)]
    made = []
    for shape in shapes:
        spread = np.sqrt(2.0 / np.prod(shape[:-1]))
        made.append(tf.Variable(tf.random.normal(shape, stddev=spread)))
        made.append(tf.Variable(tf.zeros(shape[-1])))
    return made


def logits(model: list[Any], x: Any) -> Any:
    for index in (0, 2):
        x = tf.nn.relu(tf.nn.conv2d(x, model[index], 1, "SAME") + model[index + 1])
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [-1, 32 * 16])
    x = tf.nn.relu(x @ model[4] + model[5])
    return x @ model[6] + model[7]


def train(model: list[Any], x: Any, y: Any, args: argparse.Namespace) -> None:
    momenta = [tf.Variable(tf.zeros_like(variable)) for variable in model]

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any, whole: Any, rate: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(model, x))
            # Over the whole batch, so that the sum of the ranks' gradients is that of the batch.
            loss = tf.reduce_sum(losses) / whole
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        for variable, momentum, grad in zip(
            model, momenta, tape.gradient(loss, model), strict=True
        ):
            momentum.assign(0.9 * momentum + grad)
            variable.assign_sub(rate * momentum)

    # All ranks draw the same order; each takes its share of every batch.
    order = np.random.default_rng(args.seed)
    for epoch in range(args.epochs):
        rate = args.learning_rate * (1 + np.cos(np.pi * epoch / args.epochs)) / 2
        shuffled = order.permutation(len(y))
        for begin in range(0, len(y), args.batch_size):
            chosen = shuffled[begin : begin + args.batch_size]
            mine = chosen[hvd.rank() :: hvd.size()]
            step(x[mine], y[mine], tf.constant(float(len(chosen))), tf.constant(rate, tf.float32))


def accuracy(model: list[Any], x: Any, y: Any) -> float:
    """Share of right answers; every rank looks at a part of the digits."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = np.sum(np.argmax(logits(model, x[mine]), 1) == y[mine])
    return float(hvd.allreduce(tf.constant(right), op=hvd.Sum)) / len(y)


def parameter_hash(model: list[Any]) -> str:
    digest = hashlib.sha256()
    for variable in model:
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    args = options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    # Of its own on each rank: the broadcast below makes them equal.
    tf.random.set_seed(args.seed + hvd.rank())
    x, y, x_held_out, y_held_out = digits()
    model = weights()
    hvd.broadcast_variables(model, root_rank=0)
    train(model, x, y, args)

    reached = accuracy(model, x_held_out, y_held_out)
    hashes = hvd.allgather_object(parameter_hash(model))
    if hvd.rank() == 0:
        print(f"accuracy {100 * reached:.2f} % on {len(y_held_out)} held-out digits, "
              f"{hvd.size()} ranks, parameters {hashes[0][:12]}", flush=True)  # fmt: skip
    if len(set(hashes)) != 1:
        if hvd.rank() == 0:
            print("the ranks did not train the same model", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
