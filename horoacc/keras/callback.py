"""What HoroACC's callbacks have in common."""

from __future__ import annotations

from typing import Any

import keras

from horoacc.keras import compilation


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that refuses models that cannot be trained here, before they are."""

    def set_model(self, model: Any) -> None:
        """Takes the model; Keras calls it.

        Args:
            model: The model.

        Raises:
            TypeError: It is not a model of Keras 3.
            ValueError: XLA would compile its steps.
        """
        compilation.refuse_model(model)
        super().set_model(model)
