"""The base of HoroACC's callbacks."""

from __future__ import annotations

from typing import Any

import keras

from horoacc.keras import compilation


class BatchHooks:
    """Tells tf_keras which of its hooks a callback has; Keras 3 does not ask."""

    def _overrides(self, stage: str) -> bool:
        names = (f"on_{stage}_batch_{when}" for when in ("begin", "end"))
        base = keras.callbacks.Callback
        return any(getattr(type(self), name) is not getattr(base, name) for name in names)

    def _implements_train_batch_hooks(self) -> bool:
        return self._overrides("train")

    def _implements_test_batch_hooks(self) -> bool:
        return self._overrides("test")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._overrides("predict")


class Callback(BatchHooks, keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that refuses models that cannot be trained here, before they are."""

    def set_model(self, model: Any) -> None:
        """Takes the model; Keras calls it. Errors are those of `compilation.refuse_model`."""
        compilation.refuse_model(model)
        super().set_model(model)
