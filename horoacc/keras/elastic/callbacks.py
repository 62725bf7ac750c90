"""Callbacks that commit a state and note the progress of training in it."""

from __future__ import annotations

from typing import Any

from horoacc.elastic import State
from horoacc.keras.callback import Callback


class CommitStateCallback(Callback):
    """Commits a state every so many batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Makes the callback.

        Args:
            state: The state.
            batches_per_commit: How many batches may be lost: a commit copies the whole state.

        Raises:
            ValueError: The number is not positive.
        """
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit must be positive, not {batches_per_commit}.")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to count."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self._commit()

    def _commit(self) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Keeps the number of the last batch in `state.batch`; 0 between epochs.

    It belongs before `CommitStateCallback` in the list.
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
            state: A state with an attribute `batch`.
        """
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes that a new epoch begins."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Keeps the number of finished epochs in `state.epoch`, over several calls of `fit`.

    For `model.fit(epochs=epochs - state.epoch)`. It belongs before `CommitStateCallback`.
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
            state: A state with an attribute `epoch`.
        """
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes from where this call of `fit` goes on."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1
