"""Models and optimizers of Keras as bytes, and rows as their inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np


def model_bytes(model: Any) -> bytes:
    """Saves a model, with its optimizer's state if it is compiled.

    Args:
        model: A model of Keras 3.
    """
    with tempfile.TemporaryDirectory(prefix="horoacc-run-") as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        return path.read_bytes()


def model_of(data: bytes, custom_objects: Mapping[str, Any] | None, load: Any = None) -> Any:
    """Loads what `model_bytes` gave.

    Args:
        data: The bytes.
        custom_objects: Classes and functions by name.
        load: Loads a file; None: Keras.
    """
    with tempfile.TemporaryDirectory(prefix="horoacc-run-") as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(data)
        load = load or keras.models.load_model
        return load(path, custom_objects=dict(custom_objects or {}))


def shapes_of(tensors: Sequence[Any], what: str) -> list[list[int]]:
    """Gives the shapes of a model's inputs or outputs, with -1 for what is open.

    Args:
        tensors: `model.inputs`, or `model.outputs`.
        what: Their name.

    Raises:
        ValueError: The model does not know them.
    """
    if not tensors:
        raise ValueError(f"the model does not know its {what}: give it keras.Input first")
    return [[-1 if size is None else int(size) for size in one.shape] for one in tensors]


def given_shapes(columns: Sequence[Any], shapes: Sequence[Sequence[int]]) -> Any:
    """Gives columns of rows the shapes of a model's inputs.

    Args:
        columns: An array for each, of shape (rows, …).
        shapes: Of the inputs, the first size of each being that of the batch.

    Returns:
        The array of a model with one input, else a tuple of them.
    """
    made = tuple(
        np.asarray(one).reshape(len(one), *list(shape)[1:])
        for one, shape in zip(columns, shapes, strict=True)
    )
    return made[0] if len(made) == 1 else made
