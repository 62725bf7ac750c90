"""The legacy package `tf_keras` (Keras 2), which may be there beside Keras 3, or be `tf.keras`.

It is imported only where the environment asks for it, as a caller that has its objects has done.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import keras

PACKAGE = "tf_keras"


def is_legacy(thing: Any) -> bool:
    """Says whether something is an object of tf_keras, or of a class that derives from one."""
    return any(base.__module__.partition(".")[0] == PACKAGE for base in type(thing).__mro__)


def is_a(thing: Any, path: str) -> bool:
    """Says whether something is an instance of a class, as "layers.Layer", of its own Keras."""
    found: Any = sys.modules.get(PACKAGE) if is_legacy(thing) else keras
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None and isinstance(thing, found)


def tf_keras() -> Any:
    """Gives the package, if it is TensorFlow's `tf.keras`.

    None if `tf.keras` is Keras 3, or Keras computes with something else.
    """
    return importlib.import_module(PACKAGE) if _asked_for() else None


def _asked_for() -> bool:
    """Whether `tf.keras` is tf_keras, as TensorFlow reads the variable."""
    asked = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("true", "1")
    return asked and keras.backend.backend() == "tensorflow"


def silence() -> None:
    """Has tf_keras print nothing to the screen, if it has been imported or is `tf.keras`."""
    if _asked_for() and importlib.util.find_spec(PACKAGE) is not None:
        importlib.import_module(PACKAGE)
    if PACKAGE in sys.modules:
        sys.modules[PACKAGE].utils.disable_interactive_logging()


def require_tensorflow(thing: Any) -> None:
    """Raises ValueError if Keras computes with something else than tf_keras does."""
    if keras.backend.backend() != "tensorflow":
        kind = type(thing)
        raise ValueError(
            f"{kind.__module__}.{kind.__qualname__} computes with TensorFlow, but Keras uses "
            f"{keras.backend.backend()!r}, and HoroACC follows Keras: set "
            "KERAS_BACKEND=tensorflow before Keras is imported."
        )


def schedule_of(optimizer: Any) -> Any:
    """Gives the schedule or function of a learning rate; None if there is none, or it is a number
    that can be set.
    """
    hyper = getattr(optimizer, "_hyper", None)  # of tf_keras.optimizers.legacy
    if hyper is None:
        rate = getattr(optimizer, "_learning_rate", None)
    else:
        rate = hyper.get("learning_rate")
    return rate if callable(rate) else None
