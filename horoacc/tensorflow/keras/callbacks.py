"""Horovod's callbacks for `tf.keras`: those of `horoacc.keras`."""

from __future__ import annotations

from typing import Any

from horoacc.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    RankZeroCheckpoint,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(RankZeroCheckpoint):
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
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)
