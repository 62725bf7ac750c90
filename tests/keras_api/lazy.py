"""Modules that are imported when a body first uses them, and where bodies run.

The process that collects the tests imports neither Keras nor a framework: which backend Keras uses
is decided once for a process, and by the variables of the ranks.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest


class Lazy:
    """Stands for a module until a rank wants something of it. pytest looks at it as well."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if "HOROACC_RANK" not in os.environ:
            raise AttributeError(f"{self._name} is for ranks")
        return getattr(importlib.import_module(self._name), name)


keras: Any = Lazy("keras")
tf_keras: Any = Lazy("tf_keras")
hvd: Any = Lazy("horoacc.keras")
tf: Any = Lazy("tensorflow")
torch: Any = Lazy("torch")


def missing(*packages: str) -> str:
    """Says why tests that need packages cannot run; "" if they can."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def _without(package: str) -> list[Any]:
    why = missing(package)
    return [pytest.mark.skip(reason=why)] if why else []


def _backend(name: str, package: str, *marks: Any) -> Any:
    without = [*_without("keras"), *_without(package)]
    return pytest.param({"KERAS_BACKEND": name}, id=name, marks=[*marks, *without])


TORCH = _backend("torch", "torch")
TENSORFLOW = _backend("tensorflow", "tensorflow")
on_both = pytest.mark.parametrize("env", [TORCH, TENSORFLOW])
# Four ranks that trace graphs on few cores take long: for what does not depend on the backend.
mostly_on_torch = pytest.mark.parametrize(
    "env", [TORCH, _backend("tensorflow", "tensorflow", pytest.mark.only_ranks(2))]
)
on_tf_keras = pytest.mark.parametrize(
    "env", [_backend("tensorflow", "tensorflow", *_without("tf_keras"))]
)
# As TensorFlow's own `tf.keras`.
as_tf_keras = pytest.mark.parametrize(
    "env",
    [
        pytest.param(
            {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "1"}, id="tf_keras",
            marks=[*_without("tensorflow"), *_without("tf_keras")],
        )
    ],
)  # fmt: skip
on_torch = pytest.mark.parametrize("env", [TORCH])
on_tensorflow = pytest.mark.parametrize("env", [TENSORFLOW])


def ranks(*sizes: int) -> Any:
    """The mark of bodies of `horoacc.keras`."""
    return pytest.mark.ranks(*sizes, framework="horoacc.keras")
