"""Parameters of estimators and of the models that they give, with Horovod's names.

Each has Spark's `Param`, a `setX` and a `getX`.
"""

from __future__ import annotations

from typing import Any

from pyspark import keyword_only
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasOutputCols

from horoacc.spark.store import Store


def parameter(name: str, doc: str, converter: Any = None) -> Any:
    """Gives a Param of a class.

    Args:
        name: Its name.
        doc: What it is.
        converter: Checks and converts values.
    """
    return Param(Params._dummy(), name, doc, typeConverter=converter)


def accessors(**names: str) -> Any:
    """Gives a class decorator that adds a `setX` and a `getX` for each parameter.

    Args:
        names: The X of each parameter.
    """

    def add(cls: Any) -> Any:
        for name, word in names.items():

            def put(self: Any, value: Any, name: str = name) -> Any:
                return self._set(**{name: value})

            def get(self: Any, name: str = name) -> Any:
                return self.getOrDefault(name)

            for prefix, method in (("set", put), ("get", get)):
                method.__name__ = f"{prefix}{word}"
                method.__qualname__ = f"{cls.__qualname__}.{prefix}{word}"
                method.__doc__ = f"{prefix.capitalize()}s `{name}`."
                setattr(cls, method.__name__, method)
        return cls

    return add


_COUNTS = (
    "num_proc", "batch_size", "val_batch_size", "epochs", "partitions_per_process",
    "train_steps_per_epoch", "validation_steps_per_epoch",
)  # fmt: skip
_BOOLEAN, _INT = TypeConverters.toBoolean, TypeConverters.toInt
_STRING, _STRINGS = TypeConverters.toString, TypeConverters.toListString


@accessors(
    num_proc="NumProc", model="Model", backend="Backend", store="Store", loss="Loss",
    loss_weights="LossWeights", sample_weight_col="SampleWeightCol", metrics="Metrics",
    feature_cols="FeatureCols", label_cols="LabelCols", validation="Validation",
    callbacks="Callbacks", batch_size="BatchSize", val_batch_size="ValBatchSize", epochs="Epochs",
    verbose="Verbose", gradient_compression="GradientCompression", random_seed="RandomSeed",
    shuffle_buffer_size="ShufflingBufferSize", shuffle="Shuffle", optimizer="Optimizer",
    partitions_per_process="PartitionsPerProcess", run_id="RunId",
    train_steps_per_epoch="TrainStepsPerEpoch",
    validation_steps_per_epoch="ValidationStepsPerEpoch", transformation_fn="TransformationFn",
    train_reader_num_workers="TrainReaderNumWorker", val_reader_num_workers="ValReaderNumWorker",
    reader_pool_type="ReaderPoolType", label_shapes="LabelShapes",
    inmemory_cache_all="InMemoryCacheAll", use_gpu="UseGpu", mp_start_method="MpStartMethod",
    data_module="DataModule",
)  # fmt: skip
class EstimatorParams(Params):  # type: ignore[misc]
    """Parameters of every estimator. docs/spark.md has a table of them."""

    num_proc = parameter("num_proc", "number of ranks")
    data_module = parameter("data_module", "has no effect: data are read by horoacc.spark.reader")
    model = parameter("model", "model to train")
    backend = parameter("backend", "runs a function on ranks, instead of num_proc")
    store = parameter("store", "where data, checkpoints and logs are kept")
    optimizer = parameter("optimizer", "optimizer, which ranks wrap")
    loss = parameter("loss", "loss, or one for each label")
    metrics = parameter("metrics", "metrics to record")
    loss_weights = parameter("loss_weights", "weight of each loss", TypeConverters.toListFloat)
    sample_weight_col = parameter("sample_weight_col", "column of the samples' weights", _STRING)
    gradient_compression = parameter("gradient_compression", "of DistributedOptimizer")
    feature_cols = parameter("feature_cols", "columns of features", _STRINGS)
    label_cols = parameter("label_cols", "columns of labels", _STRINGS)
    validation = parameter("validation", "share of rows to validate on, or the column that says so")
    callbacks = parameter("callbacks", "callbacks of Keras")
    batch_size = parameter("batch_size", "rows of a rank's batch", _INT)
    val_batch_size = parameter("val_batch_size", "the same for validation", _INT)
    epochs = parameter("epochs", "number of epochs", _INT)
    verbose = parameter("verbose", "0: prints nothing, 1: each epoch, 2: steps, too", _INT)
    random_seed = parameter("random_seed", "seed of the framework and of the rows' order", _INT)
    shuffle_buffer_size = parameter(
        "shuffle_buffer_size", "rows to draw from; 0: no shuffling", _INT
    )
    shuffle = parameter("shuffle", "whether to shuffle rows to train on", _BOOLEAN)
    partitions_per_process = parameter("partitions_per_process", "files of data for a rank", _INT)
    run_id = parameter("run_id", "name of the run, which goes on from its checkpoint", _STRING)
    train_steps_per_epoch = parameter("train_steps_per_epoch", "steps of an epoch", _INT)
    validation_steps_per_epoch = parameter(
        "validation_steps_per_epoch", "steps of validation", _INT
    )
    transformation_fn = parameter("transformation_fn", "takes and gives a DataFrame of pandas")
    train_reader_num_workers = parameter("train_reader_num_workers", "batches read ahead", _INT)
    val_reader_num_workers = parameter("val_reader_num_workers", "the same for validation", _INT)
    reader_pool_type = parameter("reader_pool_type", "thread, process (threads, too) or dummy")
    label_shapes = parameter("label_shapes", "shapes of labels")
    inmemory_cache_all = parameter("inmemory_cache_all", "whether ranks keep their rows", _BOOLEAN)
    use_gpu = parameter("use_gpu", "whether to use the GPU of the local rank", _BOOLEAN)
    mp_start_method = parameter("mp_start_method", "has no effect: threads read", _STRING)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            num_proc=None, data_module=None, store=None, backend=None, model=None, optimizer=None,
            loss=None, loss_weights=None, sample_weight_col=None, metrics=[], feature_cols=None,
            label_cols=None, validation=None, gradient_compression=None, batch_size=32,
            val_batch_size=None, epochs=1, verbose=1, callbacks=[], random_seed=None,
            shuffle_buffer_size=None, shuffle=True, partitions_per_process=10, run_id=None,
            train_steps_per_epoch=None, validation_steps_per_epoch=None, transformation_fn=None,
            train_reader_num_workers=2, val_reader_num_workers=2, reader_pool_type="thread",
            label_shapes=None, inmemory_cache_all=False, use_gpu=True, mp_start_method=None,
        )  # fmt: skip

    @keyword_only  # type: ignore[untyped-decorator]
    def setParams(self, **kwargs: Any) -> EstimatorParams:  # noqa: N802
        """Sets parameters by their names."""
        given: EstimatorParams = self._set(**kwargs)
        return given

    def check(self) -> None:
        """Raises ValueError, naming the parameter, for one that is missing or impossible."""
        for name in ("model", "store", "feature_cols", "label_cols"):
            value = self.getOrDefault(name)
            if value is None or (isinstance(value, list) and not value):
                raise ValueError(f"parameter {name} is missing")
        validation = self.getOrDefault("validation")
        share = isinstance(validation, (int, float)) and validation is not True
        if share and not 0 <= validation < 1:
            raise ValueError(f"parameter validation is {validation}; a share is in [0, 1)")
        for name in _COUNTS:
            value = self.getOrDefault(name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"parameter {name} is {value!r}; it must be 1 at least")
        if (rows := self.getOrDefault("shuffle_buffer_size")) is not None and rows < 0:
            raise ValueError(f"parameter shuffle_buffer_size is {rows}; it must be 0 at least")
        if not isinstance(store := self.getOrDefault("store"), Store):
            raise ValueError(f"parameter store is {store!r}; Store.create() makes one of a path")
        weights, labels = (self.getOrDefault(name) for name in ("loss_weights", "label_cols"))
        if weights is not None and len(weights) != len(labels):
            raise ValueError(f"{len(weights)} loss_weights for {len(labels)} label_cols")
        if (kind := self.getOrDefault("reader_pool_type")) not in ("thread", "process", "dummy"):
            raise ValueError(f"parameter reader_pool_type is {kind}, not thread, process or dummy")


@accessors(
    history="History", model="Model", feature_columns="FeatureColumns",
    label_columns="LabelColumns", run_id="RunId",
)  # fmt: skip
class ModelParams(HasOutputCols):  # type: ignore[misc]
    """Parameters of every trained model."""

    history = parameter("history", "metrics of each epoch")
    model = parameter("model", "the trained model")
    feature_columns = parameter("feature_columns", "columns of features")
    label_columns = parameter("label_columns", "columns of labels")
    run_id = parameter("run_id", "name of the run", _STRING)
    _metadata = parameter("_metadata", "types and shapes of columns")

    @keyword_only  # type: ignore[untyped-decorator]
    def setParams(self, **kwargs: Any) -> ModelParams:  # noqa: N802
        """Sets parameters by their names."""
        given: ModelParams = self._set(**kwargs)
        return given

    def setOutputCols(self, value: list[str]) -> ModelParams:  # noqa: N802
        """Sets the columns of predictions, one for each label; by default `LABEL__output`."""
        given: ModelParams = self._set(outputCols=value)
        return given
