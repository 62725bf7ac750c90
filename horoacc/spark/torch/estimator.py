"""TorchEstimator and TorchModel."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import torch
from pyspark import keyword_only
from pyspark.ml.param import TypeConverters

from horoacc.spark.backend import Backend
from horoacc.spark.dataset import Dataset
from horoacc.spark.estimator import HorovodEstimator, HorovodModel, dense
from horoacc.spark.params import accessors, parameter
from horoacc.spark.torch.training import Plan, bound, of_shape, train


@accessors(
    loss_constructors="LossConstructors", input_shapes="InputShapes",
    train_minibatch_fn="TrainMinibatchFn", backward_passes_per_step="BackwardPassesPerStep",
)  # fmt: skip
class TorchEstimator(HorovodEstimator):
    """Fits a torch model to a DataFrame. docs/spark.md has a table of the parameters."""

    loss_constructors = parameter("loss_constructors", "make the losses on the ranks")
    input_shapes = parameter("input_shapes", "shape of each feature, with -1 for the rows")
    train_minibatch_fn = parameter("train_minibatch_fn", "takes a step")
    backward_passes_per_step = parameter(
        "backward_passes_per_step", "of DistributedOptimizer", TypeConverters.toInt
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
        optimizer: Any = None,
        loss: Any = None,
        loss_constructors: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        sample_weight_col: str | None = None,
        gradient_compression: Any = None,
        feature_cols: Any = None,
        input_shapes: Any = None,
        validation: Any = None,
        label_cols: Any = None,
        callbacks: Any = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int = 1,
        random_seed: int | None = None,
        shuffle_buffer_size: int | None = None,
        shuffle: bool = True,
        partitions_per_process: int | None = None,
        run_id: str | None = None,
        train_minibatch_fn: Any = None,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        transformation_fn: Any = None,
        train_reader_num_workers: int | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str = "thread",
        label_shapes: Any = None,
        inmemory_cache_all: bool = False,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
        backward_passes_per_step: int = 1,
    ) -> None:
        """Takes parameters by their names; docs/spark.md has a table of them."""
        super().__init__()
        self._setDefault(
            loss_constructors=None, input_shapes=None, train_minibatch_fn=None,
            backward_passes_per_step=1,
        )  # fmt: skip
        self.setParams(**self._input_kwargs)

    def getOptimizer(self) -> Any:  # noqa: N802
        """Gives the optimizer, of the model's parameters."""
        optimizer, model = self.getOrDefault("optimizer"), self.getModel()
        return optimizer if None in (optimizer, model) else bound(optimizer, model)

    def check(self) -> None:
        """Raises ValueError, naming the parameter, for one that is missing or impossible."""
        super().check()
        for name in ("optimizer", "input_shapes"):
            if self.getOrDefault(name) is None:
                raise ValueError(f"parameter {name} is missing")
        if bool(self.getLoss()) == bool(self.getLossConstructors()):
            raise ValueError("exactly one of the parameters loss and loss_constructors is needed")
        if self.getCallbacks():
            raise ValueError("parameter callbacks is for Keras; torch has train_minibatch_fn")
        losses = _listed(self.getLoss() or self.getLossConstructors())
        if len(losses) not in (1, len(self.getLabelCols())):
            raise ValueError(f"{len(losses)} losses for {len(self.getLabelCols())} label_cols")

    def _input_shapes(self) -> Any:
        return self.getInputShapes()

    def _train(self, backend: Backend, data: Dataset, run_id: str) -> Any:
        metrics = [_listed(group) for group in self.getMetrics() or []]
        reading, val_reading = self._readings()
        plan = Plan(
            model=self.getModel(), optimizer=self.getOptimizer(),
            losses=_listed(self.getLoss()) if self.getLoss() else [],
            loss_constructors=_listed(self.getLossConstructors()) or None,
            loss_weights=self.getLossWeights(), metrics=metrics,
            compression=self.getGradientCompression(),
            backward_passes_per_step=self.getBackwardPassesPerStep(),
            features=self.getFeatureCols(), labels=self.getLabelCols(),
            weight=self.getSampleWeightCol(), input_shapes=self.getInputShapes(),
            label_shapes=self.getLabelShapes(), epochs=self.getEpochs(),
            train_path=data.train_path, val_path=data.val_path, train_rows=data.train_rows,
            val_rows=data.val_rows, train=reading, val=val_reading,
            train_steps=self.getTrainStepsPerEpoch(), val_steps=self.getValidationStepsPerEpoch(),
            minibatch=self.getTrainMinibatchFn(), checkpoint=self._checkpoint(run_id),
            store=self.getStore(), run_id=run_id, verbose=self.getVerbose(),
            seed=self.getRandomSeed(), use_gpu=self.getUseGpu(),
        )  # fmt: skip
        history, state = backend.run(train, (plan,))[0]
        # Together, so that the optimizer's parameters stay the model's.
        model, optimizer = copy.deepcopy((plan.model, plan.optimizer))
        loaded = torch.load(io.BytesIO(state), map_location="cpu")
        model.load_state_dict(loaded["model"])
        model.eval()
        optimizer.load_state_dict(loaded["optimizer"])
        return TorchModel(
            history=history, model=model, optimizer=optimizer, run_id=run_id,
            feature_columns=self.getFeatureCols(), label_columns=self.getLabelCols(),
            input_shapes=self.getInputShapes(), _metadata=data.metadata, loss=self.getLoss(),
            loss_constructors=self.getLossConstructors(),
        )  # fmt: skip


@accessors(loss="Loss", loss_constructors="LossConstructors", input_shapes="InputShapes",
           optimizer="Optimizer")  # fmt: skip
class TorchModel(HorovodModel):
    """Predicts with a torch model; `getModel` gives it."""

    optimizer = parameter("optimizer", "with its state after the training")
    input_shapes = parameter("input_shapes", "shape of each feature")
    loss = parameter("loss", "losses")
    loss_constructors = parameter("loss_constructors", "make the losses")

    @keyword_only  # type: ignore[untyped-decorator]
    def __init__(
        self,
        *,
        history: Any = None,
        model: Any = None,
        feature_columns: Any = None,
        input_shapes: Any = None,
        label_columns: Any = None,
        optimizer: Any = None,
        run_id: str | None = None,
        _metadata: Any = None,
        loss: Any = None,
        loss_constructors: Any = None,
    ) -> None:
        """Takes parameters by their names.

        Args:
            history: Metrics of each epoch.
            model: The model.
            feature_columns: Names of columns.
            input_shapes: Their shapes.
            label_columns: Names of columns.
            optimizer: The optimizer.
            run_id: The run.
            _metadata: Types and shapes of columns.
            loss: The losses.
            loss_constructors: What makes them.
        """
        super().__init__()
        if label_columns:
            self.setOutputCols([f"{name}__output" for name in label_columns])
        self._setDefault(optimizer=None, loss=None, loss_constructors=None, input_shapes=None)
        self.setParams(**self._input_kwargs)

    def _settings(self) -> tuple[dict[str, str], Callable[[], None]]:
        return {}, functools.partial(torch.set_num_threads, 1)  # a task has one core

    def _predictor(self) -> Callable[[], Callable[[list[list[Any]]], list[Any]]]:
        model = self.getModel()
        model.eval()
        shapes = self.getInputShapes()

        def make() -> Callable[[list[list[Any]]], list[Any]]:
            def call(columns: list[list[Any]]) -> list[Any]:
                inputs = [
                    of_shape(torch.as_tensor(dense(column)).float(), shape)
                    for column, shape in zip(columns, shapes, strict=True)
                ]
                with torch.no_grad():
                    outputs = model(*inputs)
                listed = outputs if isinstance(outputs, list | tuple) else [outputs]
                return [output.numpy() for output in listed]

            return call

        return make


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
