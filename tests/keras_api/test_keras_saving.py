"""Models that are saved with a distributed optimizer, and loaded with and without HoroACC."""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from lazy import hvd, keras, mostly_on_torch, on_both, ranks


@contextmanager
def saved(optimizer: Any, suffix: str = ".keras") -> Iterator[tuple[Any, str]]:
    """A model that was trained with an optimizer, and its file."""
    import keras_training as training

    model = training.network()
    training.fit(model, optimizer, training.share(2))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model{suffix}"
        model.save(path)
        yield model, path


@mostly_on_torch
@ranks(1, 2)
def test_file_holds_the_plain_optimizer() -> None:
    with saved(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))) as (model, path):
        with zipfile.ZipFile(path) as file:
            text = file.read("config.json").decode()
        plain = keras.saving.serialize_keras_object(keras.optimizers.Adam(0.01))
        optimizer = json.loads(text)["compile_config"]["optimizer"]
        assert (optimizer["module"], optimizer["class_name"]) == (plain["module"], "Adam")
        assert "horoacc" not in text and "Distributed" not in text
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is type(keras.optimizers.Adam())
        assert int(loaded.optimizer.iterations) == 2
        same_state(loaded, model)


def same_state(model: Any, other: Any) -> None:
    for name in ("weights", "optimizer"):
        mine, theirs = (
            one.optimizer.variables if name == "optimizer" else one.weights
            for one in (model, other)
        )
        for a, b in zip(mine, theirs, strict=True):
            assert (keras.ops.convert_to_numpy(a) == keras.ops.convert_to_numpy(b)).all()


@mostly_on_torch
@ranks(1, 2)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_load_model(suffix: str, wrapped: bool) -> None:
    """Back into a distributed optimizer, that trains on as if nothing had happened."""
    import keras_training as training

    from horoacc.keras.optimizer import is_distributed

    plain = training.sgd()
    optimizer = hvd.DistributedOptimizer(plain) if wrapped else plain
    with saved(optimizer, suffix) as (model, path):
        loaded = hvd.load_model(path, compression=hvd.Compression.none)
    assert is_distributed(loaded.optimizer)
    assert int(loaded.optimizer.iterations) == 2
    if suffix == ".keras":
        same_state(loaded, model)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    loaded.fit(*training.share(2), shuffle=False, verbose=0, batch_size=training.BATCH,
               callbacks=[callback])  # fmt: skip
    assert len(training.all_bits(loaded)) == 1
    if wrapped and suffix == ".keras":
        alone = training.alone(2)
        alone.fit(*training.whole(2), shuffle=False, verbose=0,
                  batch_size=training.BATCH * hvd.size())  # fmt: skip
        training.close(loaded, alone)


@mostly_on_torch
@ranks(1, 2, 4)
def test_load_model_with_objects_of_a_user() -> None:
    import keras_training as training

    class Mine(keras.optimizers.SGD):  # type: ignore[misc]
        """Of a name that Keras does not know."""

    class Squares(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    model = training.network()
    model.compile(hvd.DistributedOptimizer(Mine(0.05)), loss=Squares())
    model.fit(*training.share(2), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        model.save(path)
        with pytest.raises(TypeError, match="Could not locate"):
            hvd.load_model(path)
        loaded = hvd.load_model(
            path, custom_optimizers=[Mine], custom_objects={"Squares": Squares},
            compression=hvd.Compression.fp16,
        )  # fmt: skip
    assert isinstance(loaded.optimizer, Mine)
    same_state(loaded, model)
    loaded.fit(*training.share(2), verbose=0)
    with pytest.raises(ValueError, match="no legacy optimizers"):
        hvd.load_model(path, legacy_opts=True)


@mostly_on_torch
@ranks(1, 2)
def test_load_model_with_loss_scaling() -> None:
    import keras_training as training

    from horoacc.keras.optimizer import is_distributed

    scaling = keras.optimizers.LossScaleOptimizer(training.sgd(), initial_scale=4.0)
    with saved(hvd.DistributedOptimizer(scaling)) as (model, path):
        loaded = hvd.load_model(path)
    assert is_distributed(loaded.optimizer)
    assert isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    same_state(loaded, model)
    # The one that `compile` has put around is put inside again.
    around = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(training.sgd()))
    with saved(around) as (model, path):
        loaded = hvd.load_model(path)
    assert is_distributed(loaded.optimizer)
    same_state(loaded, model)


@on_both
@ranks(1)
def test_file_is_loaded_without_horoacc() -> None:
    with saved(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01, name="mine"))) as (model, path):
        hidden = {name: sys.modules[name] for name in sys.modules if name.startswith("horoacc")}
        sys.modules.update(dict.fromkeys(hidden))  # whoever imports one gets an ImportError
        try:
            loaded = keras.models.load_model(path)
        finally:
            sys.modules.update(hidden)
    assert loaded.optimizer.name == "mine"
    assert type(loaded.optimizer).__mro__[0].__module__.startswith("keras.")
    same_state(loaded, model)
