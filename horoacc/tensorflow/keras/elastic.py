"""Elastic training with `tf.keras`: that of `horoacc.keras`."""

from horoacc.keras.elastic import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    epoch,
    run,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "epoch",
    "run",
]
