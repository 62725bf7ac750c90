"""`fit` of Keras on 2 ranks, on TensorFlow and on torch, against the same script alone.

One copy of the network has a distributed optimizer, one a plain one; see `benchmarks.steps`.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.steps import compare

_BACKENDS = ("tensorflow", "torch")
_WIDTHS = (2048, 2048)
_INPUTS, _CLASSES, _BATCH = 1024, 1000, 32
_NET = "Keras fit, MLP 1024-2048-2048-1000, batch 32"


# --- on the ranks ------------------------------------------------------------------------------


def build(rank: Rank) -> int:
    """Makes both copies of the network, with one thread for each op; gives a copy's bytes."""
    import keras
    import numpy as np

    import horoacc.keras as hvd

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    random = np.random.default_rng(1 + rank.adapter.rank)
    rank.kept["x"] = random.normal(size=(_BATCH, _INPUTS)).astype("float32")
    rank.kept["y"] = random.integers(0, _CLASSES, _BATCH)
    for copy in ("alone", "together"):
        layers = [keras.layers.Dense(width, activation="relu") for width in _WIDTHS]
        model = keras.Sequential([
            keras.Input((_INPUTS,)), *layers, keras.layers.Dense(_CLASSES),
        ])  # fmt: skip
        optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
        together = copy == "together"
        model.compile(
            hvd.DistributedOptimizer(optimizer) if together else optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        # The first step, and on TensorFlow the graph.
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if together else []
        _fit(rank, model, 2, callbacks)
        rank.kept[copy] = model
    return 4 * int(model.count_params())


def _fit(rank: Rank, model: Any, steps: int, callbacks: list[Any]) -> None:
    """One epoch of so many times the same batch."""
    x, y = (rank.kept[name] for name in ("x", "y"))
    rows = list(range(_BATCH)) * steps
    model.fit(x[rows], y[rows], batch_size=_BATCH, shuffle=False, verbose=0, callbacks=callbacks)


def train(rank: Rank, copy: str, steps: int) -> float:
    """Trains one copy by a call of `fit`; gives the seconds of a step."""
    import keras

    meet = rank.kept.get("meet", {}).get(copy)  # see benchmarks.lockstep
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=meet)] if meet else []
    begin = time.perf_counter()
    _fit(rank, rank.kept[copy], steps, callbacks)
    return (time.perf_counter() - begin) / steps


def same(rank: Rank) -> bool:
    """Says whether all ranks have the same weights, bit for bit."""
    import horoacc

    weights = rank.kept["together"].get_weights()
    return all(
        bool((horoacc.allreduce(weight, op=op) == weight).all())
        for weight in weights for op in (horoacc.Min, horoacc.Max)
    )  # fmt: skip


# --- in the driver -----------------------------------------------------------------------------


def run(records: Records, quick: bool) -> None:
    """Measures both backends and compares with the target."""
    for backend in _BACKENDS:
        missing = [one for one in ("keras", backend) if importlib.util.find_spec(one) is None]
        if missing:
            records.write({"skipped": f"{', '.join(missing)} is not installed"})
            continue
        compare(records, f"{_NET}, {backend}", build, train, same, quick, KERAS_BACKEND=backend)
