"""KerasEstimator and KerasModel, on torch, and once more on TensorFlow in another process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import spark_models
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession

from horoacc.keras.callbacks import BestModelCheckpoint
from horoacc.spark.keras import KerasEstimator, KerasModel
from horoacc.spark.store import LocalStore

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return spark_models.xor(spark)


def network(outputs: int = 1) -> keras.Model:
    random.seed(3)  # `keras.utils.set_random_seed` would import TensorFlow
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(outputs, "sigmoid")]
    return keras.Sequential([keras.Input((2,)), *layers])


def estimator(store: LocalStore, /, **given: Any) -> KerasEstimator:
    arguments = {
        "backend": spark_models.Here(),
        "store": store,
        "model": given.pop("model") if "model" in given else network(),
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": "binary_crossentropy",
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "batch_size": 8,
        "epochs": 3,
        "verbose": 0,
        "random_seed": 5,
        "partitions_per_process": 2,
    }
    return KerasEstimator(**{**arguments, **given})


def fits_on_two_ranks(store: LocalStore, data: DataFrame) -> KerasModel:
    fitted = estimator(
        store, backend=None, num_proc=2, epochs=40, validation="val", metrics=["accuracy"],
        sample_weight_col="weight", batch_size=4, val_batch_size=2, run_id="xor", verbose=1,
    ).fit(data)  # fmt: skip
    history = fitted.getHistory()
    assert history["loss"][-1] < 0.1 < history["loss"][0]
    assert history["val_accuracy"][-1] == 1.0
    rows = fitted.transform(data).collect()
    assert [round(row["y__output"]) for row in rows] == [row["y"] for row in rows]
    rate = float(keras.ops.convert_to_numpy(fitted.getModel().optimizer.learning_rate))
    assert rate == pytest.approx(0.1)
    return fitted


def test_two_ranks_validate(
    spark: SparkSession, data: DataFrame, store: LocalStore, capfd: pytest.CaptureFixture[str]
) -> None:
    """On Spark's executors: the loss falls, and is that of all ranks; progress and history."""
    fits_on_two_ranks(store, data)
    lines = capfd.readouterr().out.splitlines()
    assert sum("val_accuracy" in line for line in lines) == 40
    logs = Path(store.get_localized_path(store.get_logs_path("xor")))
    assert (logs / "history.json").exists()


def test_on_tensorflow(spark: SparkSession) -> None:
    """In another process, whose Keras has another back end, on a Spark of its own."""
    program = (
        "import sys, tempfile, spark_cluster, spark_models, test_keras_estimator as own\n"
        "from pathlib import Path\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    spark = spark_cluster.session('local[2]', Path(folder))\n"
        "    store = own.LocalStore(folder)\n"
        "    own.fits_on_two_ranks(store, spark_models.xor(spark))\n"
        "    spark.stop()\n"
        "print('back end', own.keras.backend.backend())\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    environ = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=250
    )
    assert done.stdout.splitlines()[-1:] == ["back end tensorflow"], done.stderr[-3000:]


def test_a_run_goes_on_from_its_checkpoint(
    spark: SparkSession, data: DataFrame, store: LocalStore
) -> None:
    first = estimator(store, run_id="one").fit(data).getHistory()
    second = estimator(store, run_id="one").fit(data).getHistory()
    other = estimator(store, run_id="other").fit(data).getHistory()
    assert second["loss"][0] < first["loss"][0]
    assert other["loss"][0] == pytest.approx(first["loss"][0])


def test_the_best_model_is_kept(spark: SparkSession, data: DataFrame, store: LocalStore) -> None:
    class Rates(keras.callbacks.Callback):
        """After the first epoch the weights go astray."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.01 if epoch == 0 else 100.0

    fitted = estimator(
        store, callbacks=[Rates()], checkpoint_callback=BestModelCheckpoint(monitor="loss"),
    ).fit(data)  # fmt: skip
    history = fitted.getHistory()["loss"]
    assert min(history) == history[0] < history[-1]
    assert np.abs(fitted.getModel().get_weights()[0]).max() < 3


def test_data_in_the_store(spark: SparkSession, data: DataFrame, tmp_path: Path) -> None:
    store = LocalStore(
        str(tmp_path), train_path=str(tmp_path / "mine"), val_path=str(tmp_path / "val")
    )
    for path in ("mine", "val"):
        data.select("x1", "y").write.parquet(str(tmp_path / path))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    fitted = estimator(
        store, model=model, feature_cols=["x1"], validation=True, loss="mse", optimizer="sgd"
    ).fit_on_parquet()
    assert set(fitted.getHistory()) == {"loss", "val_loss"}
    assert fitted.transform(data.select("x1", "y")).count() == data.count()


def test_classes(spark: SparkSession, data: DataFrame, store: LocalStore) -> None:
    fitted = estimator(
        store, model=network(2), loss=keras.losses.SparseCategoricalCrossentropy(),
        label_cols=["x1"],
    ).fit(data)  # fmt: skip
    frame = fitted.setOutputCols(["scores"]).transform(data)
    assert isinstance(frame.schema["scores"].dataType, VectorUDT)
    assert frame.first()["scores"].size == 2


@keras.saving.register_keras_serializable(package="test")
class Scale(keras.layers.Layer):
    """A layer that Keras does not know."""

    def call(self, inputs: Any) -> Any:
        return inputs * 2


def test_saved_and_loaded(
    spark: SparkSession, data: DataFrame, store: LocalStore, tmp_path: Path
) -> None:
    model = keras.Sequential([keras.Input((2,)), Scale(), keras.layers.Dense(1)])
    own = estimator(store, model=model, loss="mse", custom_objects={"Scale": Scale})
    own.save(str(tmp_path / "estimator"))
    loaded = KerasEstimator.load(str(tmp_path / "estimator"))
    fitted = loaded.fit(data, {loaded.store: store, loaded.backend: spark_models.Here()})
    fitted.save(str(tmp_path / "model"))
    again = KerasModel.load(str(tmp_path / "model"))
    expected = [row["y__output"] for row in fitted.transform(data).collect()]
    assert [row["y__output"] for row in again.transform(data).collect()] == expected
    assert again.getHistory() == fitted.getHistory()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": np.zeros(3)}, "no model of Keras 3"),
        ({"optimizer": None}, "parameter optimizer is missing, and the model is not compiled"),
        ({"loss": None}, "parameter loss is missing"),
        ({"feature_cols": ["x1"]}, r"column x1 has 1 numbers in a row, and input_shapes \[-1, 2\]"),
        ({"label_shapes": [[7]]}, r"column y has 1 numbers in a row, and label_shapes \[7\]"),
    ],
)
def test_bad_parameters(
    spark: SparkSession, data: DataFrame, store: LocalStore, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        estimator(store, **given).fit(data)
