"""What each rank of a KerasEstimator's job does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import horoacc.keras as hvd
from horoacc import basics
from horoacc.spark.estimator import steps_of, write_history
from horoacc.spark.keras.models import given_shapes, model_bytes, model_of
from horoacc.spark.reader import Batches, Columns, Reading
from horoacc.spark.store import Store


@dataclass(frozen=True)
class Plan:
    """All that ranks need to know."""

    model: bytes
    optimizer: Any
    """Its configuration."""
    loss: Any
    loss_weights: list[float] | None
    metrics: list[Any]
    compression: Any
    callbacks: list[Any]
    checkpoint_callback: Any
    custom_objects: dict[str, Any]
    floatx: str
    features: list[str]
    labels: list[str]
    weight: str | None
    input_shapes: list[list[int]]
    output_shapes: list[list[int]]
    label_shapes: list[list[int]] | None
    epochs: int
    train_path: str
    val_path: str | None
    train_rows: int
    val_rows: int
    train: Reading
    val: Reading
    train_steps: int | None
    val_steps: int | None
    checkpoint: bytes | None
    store: Store
    run_id: str
    verbose: int
    seed: int | None
    use_gpu: bool


def train(plan: Plan) -> tuple[dict[str, list[float]], bytes] | None:
    """Trains.

    Args:
        plan: What to do.

    Returns:
        On rank 0 the metrics, a list of all epochs each, and the model.
    """
    hvd.init()
    if plan.use_gpu:
        _pin_gpu(basics.local_rank())
    keras.config.set_floatx(plan.floatx)
    if plan.seed is not None:
        _seed(plan.seed + basics.rank())
    model = _compiled(plan)
    rate = _rate(model)
    _set_rate(model, rate * basics.size())
    with plan.store.get_local_output_dir_fn(plan.run_id)() as folder:
        return _fit(plan, model, folder, rate)


def _compiled(plan: Plan) -> Any:
    given = {"compression": plan.compression} if plan.compression else {}
    if plan.checkpoint is not None:

        def load(path: Path, custom_objects: Any) -> Any:
            return hvd.load_model(path, custom_objects=custom_objects, **given)

        return model_of(plan.checkpoint, plan.custom_objects, load)
    with keras.saving.custom_object_scope(plan.custom_objects):
        model = model_of(plan.model, plan.custom_objects)
        optimizer = keras.optimizers.get(plan.optimizer)
    model.compile(
        hvd.DistributedOptimizer(optimizer, **given), plan.loss, metrics=plan.metrics or None,
        loss_weights=plan.loss_weights,
    )  # fmt: skip
    return model


def _fit(
    plan: Plan, model: Any, folder: str, rate: float
) -> tuple[dict[str, list[float]], bytes] | None:
    first = basics.rank() == 0
    file = Path(folder, plan.store.get_checkpoint_filename() + ".keras")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),
        hvd.callbacks.MetricAverageCallback(),
        *plan.callbacks,
    ]
    if plan.checkpoint_callback is not None:
        plan.checkpoint_callback.filepath = str(file)
        callbacks.append(plan.checkpoint_callback)
    if first:
        callbacks.append(_Checkpoint(plan, folder, file, rate))
    reader = Batches(plan.store, plan.train_path, basics.rank(), basics.size(), plan.train)
    validation: dict[str, Any] = {}
    val_reader = None
    if plan.val_path is not None:
        val_reader = Batches(plan.store, plan.val_path, basics.rank(), basics.size(), plan.val)
        validation = {
            "validation_data": _examples(plan, val_reader),
            "validation_steps": steps_of(plan.val_steps, plan.val_rows, plan.val, basics.size()),
        }
    history = model.fit(
        _examples(plan, reader), epochs=plan.epochs, callbacks=callbacks,
        steps_per_epoch=steps_of(plan.train_steps, plan.train_rows, plan.train, basics.size()),
        verbose=2 if plan.verbose and first else 0, **validation,
    )  # fmt: skip
    reader.close()
    if val_reader is not None:
        val_reader.close()
    if not first:
        return None
    told = {name: [float(one) for one in values] for name, values in history.history.items()}
    if plan.checkpoint_callback is not None and file.exists():
        return told, file.read_bytes()
    _set_rate(model, rate)
    return told, model_bytes(model)


class _Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the model and the metrics of each epoch in the store, on rank 0."""

    def __init__(self, plan: Plan, folder: str, file: Path, rate: float) -> None:
        super().__init__()
        self._plan, self._folder, self._file, self._rate = plan, folder, file, rate
        self._sync = plan.store.sync_fn(plan.run_id)
        self._told: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes them."""
        store = self._plan.store
        for name, value in (logs or {}).items():
            self._told.setdefault(name, []).append(float(value))
        if not store.saving_runs():
            return
        target = Path(self._folder, store.get_checkpoint_filename())
        if self._plan.checkpoint_callback is None:
            scaled = _rate(self.model)
            _set_rate(self.model, self._rate)
            target.write_bytes(model_bytes(self.model))
            _set_rate(self.model, scaled)
        elif self._file.exists():  # the best so far
            target.write_bytes(self._file.read_bytes())
        self._sync(self._folder)
        write_history(store, self._plan.run_id, self._told)


def _examples(plan: Plan, reader: Batches) -> Iterator[tuple[Any, ...]]:
    for rows in reader:
        inputs = given_shapes(
            [_floats(rows[name], plan) for name in plan.features], plan.input_shapes
        )
        labels = tuple(_labels(plan, rows))
        one = labels[0] if len(labels) == 1 else labels
        if plan.weight is None:
            yield inputs, one
        else:
            yield inputs, one, np.asarray(rows[plan.weight], plan.floatx)


def _floats(values: Any, plan: Plan) -> Any:
    return values.astype(plan.floatx) if np.issubdtype(values.dtype, np.floating) else values


def _labels(plan: Plan, rows: Columns) -> Iterator[Any]:
    shapes = plan.label_shapes or plan.output_shapes
    for name, shape in zip(plan.labels, shapes, strict=True):
        values = _floats(rows[name], plan)
        sizes = [size for size in list(shape)[1:] if size > 0]
        fits = int(np.prod(sizes)) * len(values) == values.size
        if plan.label_shapes:
            yield values.reshape(shape if -1 in shape else [-1, *shape])
        else:
            yield values.reshape(len(values), *sizes) if fits else values.reshape(len(values), -1)


def _rate(model: Any) -> float:
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def _set_rate(model: Any, rate: float) -> None:
    model.optimizer.learning_rate = rate


def _seed(seed: int) -> None:
    """As `keras.utils.set_random_seed`, which imports TensorFlow on any back end."""
    if keras.backend.backend() != "torch":
        keras.utils.set_random_seed(seed)
        return
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _pin_gpu(local_rank: int) -> None:
    if keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank)
    else:
        import tensorflow

        if gpus := tensorflow.config.list_physical_devices("GPU"):
            tensorflow.config.set_visible_devices(gpus[local_rank], "GPU")
