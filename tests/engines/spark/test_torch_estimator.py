"""TorchEstimator and TorchModel: what they learn, keep, say and refuse."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spark_models
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType

from horoacc.spark.store import LocalStore
from horoacc.spark.torch import TorchEstimator, TorchModel
from horoacc.spark.torch.training import weighted_loss

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"))


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> DataFrame:
    return spark_models.xor(spark)


def estimator(store: LocalStore, /, **given: Any) -> TorchEstimator:
    torch.manual_seed(3)
    model = given.pop("model", None) or spark_models.Xor()
    arguments = {
        "backend": spark_models.Here(),
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        "loss": torch.nn.functional.binary_cross_entropy,
        "input_shapes": [[-1, 2]],
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "batch_size": 8,
        "epochs": 3,
        "verbose": 0,
        "random_seed": 5,
        "partitions_per_process": 2,
    }
    return TorchEstimator(**{**arguments, **given})


def losses(model: TorchModel, phase: str = "train") -> list[float]:
    return [epoch[phase]["loss"] for epoch in model.getHistory()]


def test_the_digits(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The example, with the accuracy of `make demo`."""
    example = runpy.run_path(str(ROOT / "examples" / "spark_digits.py"))
    assert example["fit"](spark, str(tmp_path)) > 0.98
    lines = capfd.readouterr().out.splitlines()
    # What rank 0 tells of each epoch comes while it trains.
    assert sum("'epoch': " in line for line in lines) == example["ESTIMATOR_EPOCHS"]


def test_two_ranks_validate(spark: SparkSession, data: DataFrame, store: LocalStore) -> None:
    """On Spark's executors: the loss falls, and is that of all ranks; progress and history."""

    def right(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((output > 0.5) == (label > 0.5)).float().mean()

    fitted = estimator(
        store, backend=None, num_proc=2, epochs=30, validation="val", metrics=[[right]],
        sample_weight_col="weight", batch_size=4, run_id="xor",
        val_batch_size=2,
    ).fit(data)  # fmt: skip
    assert losses(fitted)[-1] < 0.1 < losses(fitted)[0]
    last = fitted.getHistory()[-1]
    assert last["validation"]["all_metrics"] == [{"group_0_y": 1.0}]
    logs = Path(store.get_localized_path(store.get_logs_path("xor")))
    assert json.loads((logs / "history.json").read_text()) == fitted.getHistory()
    rows = fitted.transform(data).collect()
    assert [round(row["y__output"]) for row in rows] == [row["y"] for row in rows]
    assert fitted.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.5)


def test_two_outputs(spark: SparkSession, data: DataFrame, store: LocalStore) -> None:
    model = spark_models.Two()
    fitted = estimator(
        store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=[torch.nn.functional.mse_loss, torch.nn.functional.l1_loss], loss_weights=[1.0, 0.0],
        feature_cols=["x1", "x2"], input_shapes=[[-1, 1], [1]], label_cols=["x1", "x2"], epochs=10,
        validation=0.25,
        metrics=[[torch.nn.functional.l1_loss], [torch.nn.functional.mse_loss] * 2],
    ).fit(data)  # fmt: skip
    trained, before = fitted.getModel(), model.of_product.weight
    assert losses(fitted)[-1] < losses(fitted)[0]
    assert losses(fitted, "validation")[-1] < losses(fitted, "validation")[0]
    assert torch.equal(trained.of_product.weight, before)  # its loss counts nothing
    names = [sorted(group) for group in fitted.getHistory()[0]["train"]["all_metrics"]]
    assert names == [["group_0_x1", "group_0_x2"], ["group_1_x1", "group_1_x2"]]
    frame = fitted.setOutputCols(["sum", "product"]).transform(data)
    assert frame.columns == [*data.columns, "sum", "product"]


def test_a_run_goes_on_from_its_checkpoint(
    spark: SparkSession, data: DataFrame, store: LocalStore
) -> None:
    first = estimator(store, run_id="one").fit(data)
    assert store.exists(f"{store.get_checkpoint_path('one')}/{store.get_checkpoint_filename()}")
    second = estimator(store, run_id="one").fit(data)
    other = estimator(store, run_id="other").fit(data)
    assert losses(second)[0] < losses(first)[0]
    assert losses(other)[0] == losses(first)[0]


def test_a_dataframe_is_written_once(
    spark: SparkSession, data: DataFrame, store: LocalStore
) -> None:
    estimator(store).fit(data)
    path = Path(store.get_localized_path(store.get_train_data_path(0)))
    written = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    other = LocalStore(store.prefix_path)  # of the same path: it overwrites nothing, too
    for again in (store, other):
        estimator(again).fit(data)
        assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == written
    estimator(store).fit(data.limit(16))  # its place is free
    assert not written.items() & {f: f.stat().st_mtime_ns for f in path.iterdir()}.items()


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("pool", ["thread", "dummy", "process"])
def test_data_in_the_store(
    spark: SparkSession, data: DataFrame, tmp_path: Path, memory: bool, pool: str
) -> None:
    store = LocalStore(str(tmp_path), train_path=str(tmp_path / "mine"))
    data.select("x1", "x2", "y").repartition(3).write.parquet(str(tmp_path / "mine"))
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sigmoid())
    fitted = estimator(
        store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        feature_cols=["x1"], input_shapes=[[-1, 1]], inmemory_cache_all=memory,
        reader_pool_type=pool, shuffle_buffer_size=16,
    ).fit_on_parquet()  # fmt: skip
    predicted = fitted.transform(data.select("x1", "x2", "y"))
    assert predicted.count() == data.count()
    assert isinstance(predicted.schema["y__output"].dataType, DoubleType)


def test_steps_minibatch_transformation_and_constructors(
    spark: SparkSession, data: DataFrame, store: LocalStore, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"

    def minibatch(model, optimizer, shape, loss_fn, inputs, labels, weights):  # type: ignore[no-untyped-def]
        with open(seen, "a") as file:
            file.write(f"{float(labels[0].max())}\n")
        outputs, labels = shape(model(*inputs), labels)
        return outputs, loss_fn(outputs, labels, weights)  # without a step

    def halved(frame):  # type: ignore[no-untyped-def]
        frame["y"] = frame["y"] / 2
        return frame

    fitted = estimator(
        store, train_minibatch_fn=minibatch, transformation_fn=halved, train_steps_per_epoch=2,
        loss=None, loss_constructors=[lambda **_: torch.nn.functional.mse_loss],
    ).fit(data)  # fmt: skip
    assert seen.read_text().splitlines() == ["0.5"] * 6
    assert len(set(losses(fitted))) <= 3


def test_classes(spark: SparkSession, data: DataFrame, store: LocalStore) -> None:
    """A label is a number, and the model's output a vector."""
    model = spark_models.Xor(2)
    fitted = estimator(
        store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy, label_cols=["x1"],
    ).fit(data)  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        frame = fitted.transform(data)
        assert torch.get_num_threads() == 3  # the driver's; a task has one
    finally:
        torch.set_num_threads(threads)
    assert isinstance(frame.schema["x1__output"].dataType, VectorUDT)
    assert frame.first()["x1__output"].size == 2


def test_saved_and_loaded(
    spark: SparkSession, data: DataFrame, store: LocalStore, tmp_path: Path
) -> None:
    own = estimator(store, loss=torch.nn.BCELoss())
    own.write().overwrite().save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    assert loaded.uid == own.uid and loaded.getBatchSize() == 8
    assert loaded.getOrDefault("store") is None  # belongs to a session
    params = {loaded.store: store, loaded.backend: spark_models.Here()}
    fitted = loaded.fit(data, params)
    fitted.save(str(tmp_path / "model"))
    again = TorchModel.load(str(tmp_path / "model"))
    expected = [row["y__output"] for row in fitted.transform(data).collect()]
    assert [row["y__output"] for row in again.transform(data).collect()] == expected
    assert again.getHistory() == fitted.getHistory()
    ids = {id(parameter) for parameter in again.getModel().parameters()}
    assert {id(one) for one in again.getOptimizer().param_groups[0]["params"]} == ids
    pipeline = Pipeline(stages=[own]).fit(data)
    pipeline.write().overwrite().save(str(tmp_path / "pipeline"))
    stages = PipelineModel.load(str(tmp_path / "pipeline")).stages
    assert isinstance(stages[0], TorchModel)


def test_weighted_losses() -> None:
    def difference(output, label, reduction="mean"):  # type: ignore[no-untyped-def]
        each = label - output
        return each if reduction == "none" else each.mean()

    outputs, labels = [torch.tensor([1.0, 0.0, 2.0])] * 2, [torch.tensor([1.0, 2.0, 3.0])] * 2
    assert weighted_loss(outputs, labels, [0.2, 0.8], [difference] * 2) == pytest.approx(1.0)
    weights = torch.tensor([1.0, 6.0, 3.0])
    weighted = weighted_loss(outputs, labels, [0.2, 0.8], [difference] * 2, weights)
    assert weighted == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"store": None}, "parameter store is missing"),
        ({"optimizer": None}, "parameter optimizer is missing"),
        ({"loss": None}, "exactly one of the parameters loss and loss_constructors"),
        ({"num_proc": 2}, "at most one of the parameters backend and num_proc"),
        ({"validation": 1.5}, r"parameter validation is 1.5; a share is in \[0, 1\)"),
        ({"validation": "nothing"}, "the DataFrame has no column nothing"),
        ({"feature_cols": ["absent"]}, "the DataFrame has no column absent"),
        ({"input_shapes": [[-1, 3]]}, r"column features has 2 numbers in a row, .*\[-1, 3\]"),
        ({"input_shapes": [[2], [2]]}, "input_shapes has 2 shapes for 1 columns"),
        ({"label_shapes": [[7]]}, r"column y has 1 numbers in a row, and label_shapes \[7\]"),
        ({"batch_size": 0}, "parameter batch_size is 0"),
        ({"train_steps_per_epoch": -1}, "parameter train_steps_per_epoch is -1"),
        ({"backend": None, "num_proc": "a"}, "parameter num_proc is 'a'; it must be 1 at least"),
        ({"shuffle_buffer_size": -5}, "parameter shuffle_buffer_size is -5"),
        ({"store": "/tmp/x"}, r"parameter store is '/tmp/x'; Store.create\(\) makes one"),
        ({"loss_weights": [0.5, 0.5]}, "2 loss_weights for 1 label_cols"),
        ({"reader_pool_type": "fibre"}, "parameter reader_pool_type is fibre"),
        ({"callbacks": [print]}, "parameter callbacks is for Keras"),
        ({"loss": [np.mean] * 2}, "2 losses for 1 label_cols"),
    ],
)
def test_bad_parameters(
    spark: SparkSession, data: DataFrame, store: LocalStore, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        estimator(store, **given).fit(data)


def test_data_that_cannot_be_read(spark: SparkSession, store: LocalStore) -> None:
    frame = spark.createDataFrame([([1.0], 1.0), ([1.0, 2.0], 1.0)], ["features", "y"])
    with pytest.raises(ValueError, match=r"column features has (rows of 1 to 2 numbers|2 numbers)"):
        # The rows may be read together, or one by one.
        estimator(
            store, partitions_per_process=1, input_shapes=[[-1, len(frame.first().features)]]
        ).fit(frame)
    words = spark.createDataFrame([("one", 1.0)], ["features", "y"])
    with pytest.raises(ValueError, match="column features is of type string, which is no number"):
        estimator(store).fit(words)
