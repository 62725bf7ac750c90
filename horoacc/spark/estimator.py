"""What estimators of all frameworks have in common, and the models that they give."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cloudpickle
import numpy as np
from pyspark import Row
from pyspark.ml import Estimator, Model
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, FloatType, IntegralType, StructField, StructType

from horoacc.spark.backend import Backend, SparkBackend
from horoacc.spark.dataset import Dataset, check_shapes, found, prepared
from horoacc.spark.params import EstimatorParams, ModelParams
from horoacc.spark.reader import Reading
from horoacc.spark.serialization import Saved
from horoacc.spark.store import Store

_ROWS = 256  # of a batch of predictions


class HorovodEstimator(Estimator, EstimatorParams, Saved):  # type: ignore[misc]
    """Fits a model to a DataFrame on ranks that are Spark's tasks."""

    def fit(self, df: DataFrame, params: Any = None) -> Any:
        """Fits the model.

        Args:
            df: The data.
            params: Parameters that replace those of the estimator.

        Returns:
            A `HorovodModel`.
        """
        return super().fit(df, params)

    def fit_on_parquet(self, params: Any = None, dataset_idx: int | None = None) -> Any:
        """Fits the model to data that are in the store.

        Args:
            params: Parameters that replace those of the estimator.
            dataset_idx: The number of the data set; None: the one without a number.

        Returns:
            A `HorovodModel`.
        """
        own = self.copy(params) if params else self
        own.check()
        data = found(own.getStore(), own._columns(), own.getValidation(), dataset_idx)
        return own._fit_on(own._backend(), data)

    def _fit(self, df: DataFrame) -> Any:
        self.check()
        backend = self._backend()
        partitions = backend.num_processes() * self.getPartitionsPerProcess()
        with prepared(
            self.getStore(), df, self.getFeatureCols(), self.getLabelCols(),
            self.getSampleWeightCol(), self.getValidation(), partitions,
        ) as data:  # fmt: skip
            return self._fit_on(backend, data)

    def _backend(self) -> Backend:
        backend: Backend | None = self.getBackend()
        if backend is None:
            return SparkBackend(self.getNumProc(), verbose=self.getVerbose())
        if self.getNumProc() is not None:
            raise ValueError("at most one of the parameters backend and num_proc may be given")
        return backend

    def _columns(self) -> list[str]:
        weight = self.getSampleWeightCol()
        return [*self.getFeatureCols(), *self.getLabelCols(), *([weight] if weight else [])]

    def _fit_on(self, backend: Backend, data: Dataset) -> Any:
        check_shapes(data.metadata, self.getFeatureCols(), self._input_shapes(), "input_shapes")
        check_shapes(data.metadata, self.getLabelCols(), self.getLabelShapes(), "label_shapes")
        if self.getMpStartMethod() is not None:
            self._say("mp_start_method has no effect: threads read data")
        if self.getDataModule() is not None:
            self._say("data_module has no effect: data are read by horoacc.spark.reader")
        run_id = self.getRunId() or f"{type(self).__name__}_{time.time_ns()}"
        if self.getVerbose():
            self._say(
                f"run {run_id}: {data.train_rows} rows to train on, {data.val_rows} to validate"
            )
        return self._train(backend, data, run_id)

    def _say(self, text: str) -> None:
        print(f"horoacc.spark: {text}", flush=True)

    def _checkpoint(self, run_id: str) -> bytes | None:
        """The last checkpoint of a run that has begun before."""
        store: Store = self.getStore()
        folder = store.get_checkpoint_path(run_id)
        path = f"{folder}/{store.get_checkpoint_filename()}"
        if folder is None or not store.exists(path):
            return None
        if self.getVerbose():
            self._say(f"run {run_id} goes on from its checkpoint {path}")
        return store.read(path)

    def _readings(self) -> tuple[Reading, Reading]:
        """How ranks read what they train on, and what they validate on."""
        shared: dict[str, Any] = {
            "columns": tuple(dict.fromkeys(self._columns())),
            "threads": self.getReaderPoolType() != "dummy",
            "in_memory": self.getInMemoryCacheAll(),
            "transform": self.getTransformationFn(),
        }
        train = Reading(
            batch_size=self.getBatchSize(), shuffle=self.getShuffle(),
            buffer_rows=self.getShufflingBufferSize(), seed=self.getRandomSeed(),
            workers=self.getTrainReaderNumWorker(), **shared,
        )  # fmt: skip
        val = Reading(
            batch_size=self.getValBatchSize() or self.getBatchSize(), shuffle=False,
            workers=self.getValReaderNumWorker(), **shared,
        )  # fmt: skip
        return train, val

    def _input_shapes(self) -> Any:
        raise NotImplementedError

    def _train(self, backend: Backend, data: Dataset, run_id: str) -> Any:
        raise NotImplementedError


class HorovodModel(Model, ModelParams, Saved):  # type: ignore[misc]
    """Predicts from a DataFrame: each label gets a column more, by default `LABEL__output`."""

    def transform(self, df: DataFrame, params: Any = None) -> DataFrame:
        """Adds columns of predictions.

        Args:
            df: The data.
            params: Parameters that replace those of the model.
        """
        given: DataFrame = super().transform(df, params)
        return given

    def _predictor(self) -> Callable[[], Callable[[list[list[Any]]], list[Any]]]:
        """What makes, on an executor, a function from columns to an array for each label."""
        raise NotImplementedError

    def _settings(self) -> tuple[dict[str, str], Callable[[], None]]:
        """Variables of an executor, and what it calls before it makes the predictor."""
        raise NotImplementedError

    def _transform(self, df: DataFrame) -> DataFrame:
        features, labels = self.getFeatureColumns(), self.getLabelColumns()
        outputs = self.getOutputCols()
        metadata = self.getOrDefault(self._metadata)
        make, (environ, configure) = self._predictor(), self._settings()
        first = df.select(*features).head()
        kinds = [metadata[label]["spark_data_type"] for label in labels]
        if first is not None:
            # A label may be a number, and the model's output one for each class.
            predictions = make()([[first[name]] for name in features])
            kinds = [
                kind if kind is not DenseVector and np.size(one) == 1 else None
                for kind, one in zip(kinds, predictions, strict=True)
            ]
        fields = [
            StructField(name, _type(kind), True) for name, kind in zip(outputs, kinds, strict=True)
        ]
        schema = StructType([field for field in df.schema.fields if field.name not in outputs])
        kept = [field.name for field in schema.fields]

        # The model's class may be in a module that only the driver's path leads to.
        pickled, path = cloudpickle.dumps((configure, make)), tuple(sys.path)

        def predict(rows: Iterable[Row]) -> Iterator[list[Any]]:
            os.environ.update(environ)
            sys.path += [entry for entry in path if entry not in sys.path]
            configure, make = cloudpickle.loads(pickled)
            configure()
            call = make()
            rows = iter(rows)
            while batch := list(itertools.islice(rows, _ROWS)):
                found = call([[row[name] for row in batch] for name in features])
                for at, row in enumerate(batch):
                    values = [
                        _value(field, one[at]) for field, one in zip(fields, found, strict=True)
                    ]
                    yield [*(row[name] for name in kept), *values]

        return df.sparkSession.createDataFrame(
            df.rdd.mapPartitions(predict), StructType([*schema.fields, *fields])
        )


def _type(kind: Any) -> Any:
    """The type of predictions: that of the label, as far as a model can give it."""
    if kind in (None, DenseVector):
        return VectorUDT()
    return kind() if issubclass(kind, (IntegralType, FloatType)) else DoubleType()


def _value(field: StructField, predicted: Any) -> Any:
    if isinstance(field.dataType, VectorUDT):
        return DenseVector(np.asarray(predicted, dtype=np.float64).reshape(-1))
    number = np.asarray(predicted).reshape(-1)[0].item()
    return round(number) if isinstance(field.dataType, IntegralType) else float(number)


def dense(column: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Gives rows of numbers, lists or Spark's vectors as an array.

    Args:
        column: A value for each row.
    """
    return np.array([one.toArray() if hasattr(one, "toArray") else one for one in column])


def steps_of(given: int | None, rows: int, how: Reading, size: int) -> int:
    """Gives the steps of an epoch, the same on all ranks.

    Args:
        given: What the user has said.
        rows: Of all ranks.
        how: How they are read.
        size: The number of ranks.
    """
    return given or math.ceil(rows / how.batch_size / size)


def write_history(store: Store, run_id: str, history: Any) -> None:
    """Writes a run's metrics among its logs.

    Args:
        store: The store.
        run_id: The run.
        history: Metrics of each epoch.
    """
    logs = store.get_logs_path(run_id)
    if logs is not None:
        store.write_text(f"{logs}/history.json", json.dumps(history, default=float))
