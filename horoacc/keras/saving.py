"""Loading a model back into a distributed optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from horoacc.compression import Compressor, NoneCompressor
from horoacc.keras import compilation, legacy
from horoacc.keras.gradients import is_distributed
from horoacc.keras.optimizer import DistributedOptimizer
from horoacc.keras.optimizer_state import make_variables


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = NoneCompressor,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model, and makes its optimizer a distributed one with the state that was saved.

    On TensorFlow it is not compiled by XLA any more, even if the file says so.

    Args:
        filepath: A `.keras` or `.h5` file, whether it was saved with a distributed optimizer or a
            plain one. Of an `.h5` file Keras loads no more of the optimizer's state than its count
            of iterations.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Objects by name, as for `keras.models.load_model`. A function that makes a
            distributed optimizer may stand for an optimizer's class.
        compression: See `DistributedOptimizer`.
        legacy_opts: Horovod's way to ask for optimizers of Keras 2. Where `tf.keras` is tf_keras
            (TF_USE_LEGACY_KERAS=1), files are loaded by it.

    Returns:
        The model. It has no optimizer if it was saved without one.

    Raises:
        ValueError: `legacy_opts` is set and Keras is Keras 3, or the file cannot be loaded.
    """
    package = legacy.tf_keras()
    if legacy_opts and package is None:
        raise ValueError("Keras 3 has no legacy optimizers: legacy_opts must be False.")
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = (package or keras).models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        # Horovod's scripts have functions among `custom_objects` that make distributed ones.
        if not is_distributed(getattr(optimizer, "inner_optimizer", optimizer)):
            model.optimizer = DistributedOptimizer(optimizer, compression=compression)
        make_variables(model.optimizer, model)
        compilation.do_without_xla(model)
    return model
