"""Horovod's callbacks for `model.fit`, of which every rank has the same list.

Those of learning rates are in `horoacc.keras.learning_rates`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from horoacc import arrays, autotune, basics, objects
from horoacc.dtypes import Min
from horoacc.keras import backend, legacy
from horoacc.keras.callback import BatchHooks, Callback
from horoacc.keras.learning_rates import LearningRateScheduleCallback, LearningRateWarmupCallback
from horoacc.keras.optimizer_state import variables_of

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the root's weights and optimizer state, once, when training begins.

    Before the first step if all ranks have built model and optimizer by then, as Keras does where
    it can; after the first batch otherwise.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Makes the callback.

        Args:
            root_rank: The global rank that sends.
            device: As in Horovod; not used.
            local_variables: Keras variables that stay each rank's own.
        """
        super().__init__()
        del device
        self.root_rank = root_rank
        self.broadcast_done = False
        given = [] if local_variables is None else local_variables
        many = isinstance(given, (list, tuple, set))
        self.local_variables: list[Any] = list(given) if many else [given]

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts, if there is something to broadcast on all ranks."""
        if self.broadcast_done:
            return
        ready = np.array(self.model.built, np.int32)
        everywhere = arrays.allreduce(ready, name="keras.built", op=Min)
        if everywhere:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, if that was not possible before; tunes settings under `--autotune`."""
        if not self.broadcast_done:
            self._broadcast()
        reduction = getattr(self.model.optimizer, "_reduction", None)  # of a distributed one
        if reduction is not None and reduction.trains_everywhere():
            autotune.step_ended(reduction, self._listed, planned=False)

    def _listed(self) -> autotune.Gradients:
        return [
            (getattr(variable, "path", variable.name), str(variable.dtype), list(variable.shape), 0)
            for variable in self.model.trainable_variables
        ]

    def _broadcast(self) -> None:
        local = {id(variable) for variable in self.local_variables}
        variables = [*self.model.weights, *variables_of(self.model.optimizer, self.model)]
        # `local_variables` may hold the tf.Variable of a Keras variable.
        chosen = [
            variable for variable in variables
            if id(variable) not in local and id(variable.value) not in local
        ]  # fmt: skip
        backend.current().broadcast_variables(chosen, self.root_rank, "keras.variables")
        self.broadcast_done = True


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch over the ranks, for the callbacks behind it in the list."""

    def __init__(self, device: str = "") -> None:
        """Makes the callback.

        Args:
            device: As in Horovod; not used.
        """
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages, in place.

        Raises:
            ValueError: The ranks have not measured the same, or something that is no number.
        """
        if not logs:
            logs = {} if logs is None else logs
        values = {name: _numbers(logs[name]) for name in sorted(logs)}
        titles = [_title(name, value) for name, value in values.items()]
        everywhere = objects.allgather_object(titles, name="keras.metrics.names")
        for rank, others in enumerate(everywhere):
            if others != everywhere[0]:
                raise ValueError(
                    f"MetricAverageCallback: rank {rank} has metrics {others} and rank 0 "
                    f"{everywhere[0]}; all ranks must measure the same."
                )
        for name in [name for name, value in values.items() if value is None]:
            raise ValueError(f"MetricAverageCallback: {name!r} is no number: {logs[name]!r}.")
        if titles:
            flat = np.concatenate([np.ravel(value) for value in values.values()])
            ends = np.cumsum([value.size for value in values.values()])
            averages = np.split(arrays.allreduce(flat, name="keras.metrics"), ends[:-1])
            for (name, value), mean in zip(values.items(), averages, strict=True):
                logs[name] = mean.reshape(value.shape) if value.ndim else mean.item()


def _numbers(metric: Any) -> Any:
    """A metric as an array of float64: most have one number, some have one for each class."""
    try:
        if keras.ops.is_tensor(metric):
            metric = keras.ops.convert_to_numpy(metric)
        return np.asarray(metric, np.float64)
    except (TypeError, ValueError):
        return None


def _title(name: str, value: Any) -> str:
    if value is None:
        return f"{name} (no number)"
    return f"{name} of shape {value.shape}" if value.ndim else name


class RankZeroCheckpoint(BatchHooks, keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the best model so far, on rank 0. `filepath` is to be set before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        """Makes the callback.

        Args:
            monitor: The metric that says which model is best. Put `MetricAverageCallback` before.
            verbose: Whether to print the names of saved files.
            save_weights_only: Save weights, without the model's structure.
            mode: "min", "max" or "auto".
            save_freq: "epoch", or a number of batches.
        """
        suffix = ".weights.h5" if save_weights_only else ".keras"
        self.filepath: Any
        self.mode: str
        super().__init__(
            f"unset{suffix}", monitor=monitor, verbose=verbose, save_best_only=True,
            save_weights_only=save_weights_only, mode=mode, save_freq=save_freq,
        )  # fmt: skip
        self.filepath = None

    def _set_monitor_op(self) -> None:
        if self.mode not in ("min", "max") and legacy.is_legacy(self.model):
            # Metrics of tf_keras have no direction: the callback goes by their names.
            rises = any(part in self.monitor for part in ("acc", "auc"))
            self.mode = "max" if rises else "min"
        super()._set_monitor_op()

    def _save_model(self, epoch: int, batch: Any, logs: Any) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its `filepath` before training.")
        # Ranks that wrote the same file at the same time would damage it.
        if basics.rank() == 0:
            super()._save_model(epoch, batch, logs)


class BestModelCheckpoint(RankZeroCheckpoint):
    """Saves the best model so far, on rank 0. `filepath` is to be set before training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        """Makes the callback.

        Args:
            monitor: The metric that says which model is best. Put `MetricAverageCallback` before.
            verbose: Whether to print the names of saved files.
            mode: "min", "max" or "auto".
            save_freq: "epoch", or a number of batches.
        """
        super().__init__(monitor, verbose, False, mode, save_freq)
