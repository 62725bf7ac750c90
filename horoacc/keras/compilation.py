"""Checks for models that cannot be trained, with clearer errors than TensorFlow's or Keras'."""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras

from horoacc.keras import legacy

_XLA = (
    "XLA (jit_compile=True) compiles this training step, and XLA cannot run HoroACC's collectives "
    "inside a step. Pass jit_compile=False to model.compile(), or to tf.function()."
)


def refuse_xla() -> None:
    """Raises ValueError if a function of TensorFlow that XLA will compile traces the caller."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf  # noqa: PLC0415 - Keras has imported it, if anybody

    if tf.executing_eagerly():
        return
    # Tracing calls this from below the function's own frames, and a graph does not say who
    # compiles it.
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, tf.types.experimental.PolymorphicFunction) and getattr(
            owner, "_jit_compile", False
        ):
            raise ValueError(_XLA)
        frame = frame.f_back  # type: ignore[assignment]


def refuse_model(model: Any) -> None:
    """Raises TypeError for a model that is not of Keras, ValueError if XLA will compile it."""
    if not legacy.is_a(model, "Model"):
        raise TypeError(not_of_keras("model", model))
    if legacy.is_legacy(model):
        legacy.require_tensorflow(model)
    if keras.backend.backend() == "tensorflow" and _distributed(model) and model.jit_compile:
        raise ValueError(_XLA)


def teach_models() -> None:
    """Has `compile(jit_compile="auto")` leave XLA out. Once is enough.

    By itself Keras chooses XLA wherever there is a GPU, for every optimizer.
    """
    model: Any = keras.Model
    choose = getattr(model, "_resolve_auto_jit_compile", None)
    if choose is not None and not hasattr(choose, "_heeds_distributed_optimizers"):
        model._resolve_auto_jit_compile = _heeding(choose)


def _heeding(original: Any) -> Any:
    @functools.wraps(original)
    def resolve(self: Any) -> Any:
        return False if _distributed(self) else original(self)

    resolve._heeds_distributed_optimizers = True  # type: ignore[attr-defined]
    return resolve


def do_without_xla(model: Any) -> None:
    """Undoes a file's choice of XLA, for a model that gets a distributed optimizer."""
    if keras.backend.backend() == "tensorflow" and model.jit_compile:
        model.jit_compile = False


def _distributed(model: Any) -> bool:
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return any(hasattr(one, "_reduction") for one in (optimizer, inner))


def not_of_keras(what: str, given: Any) -> str:
    """The text of an error: an object is not of Keras."""
    kind = type(given)
    article = "an" if what[0] in "aeiou" else "a"
    return f"HoroACC needs {article} {what} of Keras, not {kind.__module__}.{kind.__qualname__}."
