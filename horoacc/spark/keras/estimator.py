"""KerasEstimator and KerasModel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from pyspark import keyword_only

from horoacc.spark.backend import Backend
from horoacc.spark.dataset import Dataset
from horoacc.spark.estimator import HorovodEstimator, HorovodModel, dense
from horoacc.spark.keras.models import given_shapes, model_bytes, model_of, shapes_of
from horoacc.spark.keras.training import Plan, train
from horoacc.spark.params import accessors, parameter


class _OfKeras:
    """Parameters that are not pickled as they are."""

    def packed(self, name: str, value: Any) -> Any:
        """Gives what is pickled for a parameter."""
        if name == "model" and value is not None:
            return model_bytes(value)
        if name == "optimizer" and isinstance(value, keras.optimizers.Optimizer):
            return keras.optimizers.serialize(value)
        return value

    @classmethod
    def unpacked(cls, name: str, value: Any, others: dict[str, Any]) -> Any:
        """Undoes `packed`."""
        custom_objects = others.get("custom_objects") or {}
        if name == "model" and value is not None:
            return model_of(value, custom_objects)
        if name == "optimizer" and isinstance(value, dict):
            return keras.optimizers.deserialize(value, custom_objects=custom_objects)
        return value


@accessors(
    custom_objects="CustomObjects", checkpoint_callback="CheckpointCallback",
    backend_env="BackendEnv",
    tensorflow_dataset_prefetch_buffer_size="TensorflowDatasetPrefetchBufferSize",
)  # fmt: skip
class KerasEstimator(_OfKeras, HorovodEstimator):
    """Fits a model of Keras 3 to a DataFrame. docs/spark.md has a table of the parameters."""

    custom_objects = parameter("custom_objects", "classes and functions by name")
    checkpoint_callback = parameter("checkpoint_callback", "saves the model that is kept")
    backend_env = parameter("backend_env", "more variables of the ranks")
    tensorflow_dataset_prefetch_buffer_size = parameter(
        "tensorflow_dataset_prefetch_buffer_size", "has no effect: a thread reads ahead"
    )

    @keyword_only  # type: ignore[untyped-decorator]
    def __init__(
        self,
        *,
        num_proc: int | None = None,
        data_module: Any = None,
        model: Any = None,
        backend: Backend | None = None,
        store: Any = None,
        custom_objects: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        sample_weight_col: str | None = None,
        gradient_compression: Any = None,
        metrics: Any = None,
        feature_cols: Any = None,
        label_cols: Any = None,
        validation: Any = None,
        callbacks: Any = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int | None = None,
        random_seed: int | None = None,
        shuffle_buffer_size: int | None = None,
        shuffle: bool = True,
        partitions_per_process: int | None = None,
        run_id: str | None = None,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        transformation_fn: Any = None,
        train_reader_num_workers: int | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str = "thread",
        label_shapes: Any = None,
        checkpoint_callback: Any = None,
        inmemory_cache_all: bool = False,
        backend_env: Any = None,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
        tensorflow_dataset_prefetch_buffer_size: int = 0,
    ) -> None:
        """Takes parameters by their names; docs/spark.md has a table of them."""
        super().__init__()
        self._setDefault(
            custom_objects={}, checkpoint_callback=None, backend_env={},
            tensorflow_dataset_prefetch_buffer_size=0,
        )  # fmt: skip
        self.setParams(**self._input_kwargs)

    def check(self) -> None:
        """Raises ValueError, naming the parameter, for one that is missing or impossible."""
        super().check()
        if not isinstance(self.getModel(), keras.Model):
            raise ValueError(f"parameter model is a {type(self.getModel())}, no model of Keras 3")
        if self._own_optimizer() is None:
            raise ValueError("parameter optimizer is missing, and the model is not compiled")
        if not self.getLoss():
            raise ValueError("parameter loss is missing")

    def _own_optimizer(self) -> Any:
        given = self.getOrDefault("optimizer")
        return getattr(self.getModel(), "optimizer", None) if given is None else given

    def _input_shapes(self) -> Any:
        return shapes_of(self.getModel().inputs, "inputs")

    def _train(self, backend: Backend, data: Dataset, run_id: str) -> Any:
        optimizer = keras.optimizers.get(self._own_optimizer())
        reading, val_reading = self._readings()
        plan = Plan(
            model=model_bytes(self.getModel()), optimizer=keras.optimizers.serialize(optimizer),
            loss=self.getLoss(), loss_weights=self.getLossWeights(), metrics=self.getMetrics(),
            compression=self.getGradientCompression(), callbacks=list(self.getCallbacks() or []),
            checkpoint_callback=self.getCheckpointCallback(),
            custom_objects=self.getCustomObjects() or {}, floatx=keras.config.floatx(),
            features=self.getFeatureCols(), labels=self.getLabelCols(),
            weight=self.getSampleWeightCol(), input_shapes=self._input_shapes(),
            output_shapes=shapes_of(self.getModel().outputs, "outputs"),
            label_shapes=self.getLabelShapes(), epochs=self.getEpochs(),
            train_path=data.train_path, val_path=data.val_path, train_rows=data.train_rows,
            val_rows=data.val_rows, train=reading, val=val_reading,
            train_steps=self.getTrainStepsPerEpoch(), val_steps=self.getValidationStepsPerEpoch(),
            checkpoint=self._checkpoint(run_id), store=self.getStore(), run_id=run_id,
            verbose=self.getVerbose(), seed=self.getRandomSeed(), use_gpu=self.getUseGpu(),
        )  # fmt: skip
        env = {"KERAS_BACKEND": keras.backend.backend(), **(self.getBackendEnv() or {})}
        if not self.getUseGpu():
            env["CUDA_VISIBLE_DEVICES"] = ""
        history, model = backend.run(train, (plan,), env=env)[0]
        return KerasModel(
            history=history, model=model_of(model, self.getCustomObjects()), run_id=run_id,
            feature_columns=self.getFeatureCols(), label_columns=self.getLabelCols(),
            custom_objects=self.getCustomObjects(), _metadata=data.metadata,
            _floatx=plan.floatx,
        )  # fmt: skip


@accessors(custom_objects="CustomObjects")
class KerasModel(_OfKeras, HorovodModel):
    """Predicts with a model of Keras; `getModel` gives it."""

    custom_objects = parameter("custom_objects", "classes and functions by name")
    _floatx = parameter("_floatx", "Keras' type of floats")

    @keyword_only  # type: ignore[untyped-decorator]
    def __init__(
        self,
        *,
        history: Any = None,
        model: Any = None,
        feature_columns: Any = None,
        label_columns: Any = None,
        custom_objects: Any = None,
        run_id: str | None = None,
        _metadata: Any = None,
        _floatx: str | None = None,
    ) -> None:
        """Takes parameters by their names.

        Args:
            history: Metrics of all epochs.
            model: The model.
            feature_columns: Names of columns.
            label_columns: Names of columns.
            custom_objects: Classes and functions by name.
            run_id: The run.
            _metadata: Types and shapes of columns.
            _floatx: Keras' type of floats.
        """
        super().__init__()
        if label_columns:
            self.setOutputCols([f"{name}__output" for name in label_columns])
        self._setDefault(custom_objects={}, _floatx="float32")
        self.setParams(**self._input_kwargs)

    def _settings(self) -> tuple[dict[str, str], Callable[[], None]]:
        configure = functools.partial(keras.config.set_floatx, self.getOrDefault("_floatx"))
        return {"KERAS_BACKEND": keras.backend.backend()}, configure

    def _predictor(self) -> Callable[[], Callable[[list[list[Any]]], list[Any]]]:
        model = model_bytes(self.getModel())
        shapes = shapes_of(self.getModel().inputs, "inputs")
        custom_objects = self.getCustomObjects()

        def make() -> Callable[[list[list[Any]]], list[Any]]:
            loaded = model_of(model, custom_objects)

            def call(columns: list[list[Any]]) -> list[Any]:
                inputs = given_shapes([dense(column) for column in columns], shapes)
                outputs = loaded.predict_on_batch(inputs)
                listed = outputs if isinstance(outputs, list | tuple) else [outputs]
                return [np.asarray(output) for output in listed]

            return call

        return make
