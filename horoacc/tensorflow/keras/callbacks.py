"""Horovod's callbacks for `tf.keras`: those of `horoacc.keras`."""

from __future__ import annotations

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
