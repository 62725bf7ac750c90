"""Callbacks that commit a state and note the progress of training in it.

Their order in the list does not matter: a commit has the others note their progress first.
"""

from __future__ import annotations

from typing import Any

from horoacc.elastic import State
from horoacc.keras.callback import Callback

# Truthy, so that `fit` ends the epoch; not True, with which callbacks end the training.
_EPOCH_IS_OVER = 1


class CountedBatches(int):
    """How many batches of an epoch are done, as callbacks have counted them.

    A script may begin with any number in `state.batch`, which says nothing of what was done.

    Attributes:
        of: How many batches the epoch has; 0 if nobody knows.
    """

    of = 0


def _counted(done: int, of: int) -> CountedBatches:
    number = CountedBatches(done)
    number.of = of
    return number


class _Noting(Callback):
    """Notes progress in a state: when Keras says it, or before that because of a commit."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins to note."""
        _noting(self.state)[type(self)] = self

    def on_train_end(self, logs: Any = None) -> None:
        """Ends that."""
        _noting(self.state).pop(type(self), None)

    def note_batch(self, batch: int) -> None:
        """Notes that a batch is done; a second call changes nothing."""

    def note_epoch(self, epoch: int) -> None:
        """Notes that an epoch is done; a second call changes nothing."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch."""
        self.note_batch(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.note_epoch(epoch)


def _noting(state: Any) -> dict[type, _Noting]:
    """The callbacks that note the progress of the present training in a state."""
    found: dict[type, _Noting] = vars(state).setdefault("_noting", {})
    return found


class CommitStateCallback(Callback):
    """Commits a state every so many batches, and at the end of each epoch.

    An epoch's last batch is committed with the end of the epoch.
    """

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
        for one in _noting(self.state).values():
            one.note_batch(batch)
        self.batches_remaining -= 1
        steps = (self.params or {}).get("steps")
        ends = (steps and batch + 1 >= steps) or self.model.stop_training
        if self.batches_remaining <= 0 and not ends:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        for one in _noting(self.state).values():
            one.note_epoch(epoch)
        self._commit()

    def _commit(self) -> None:
        self.batches_remaining = self.batches_per_commit
        self.state.commit()


class UpdateBatchStateCallback(_Noting):
    """Keeps in `state.batch` how many batches of the epoch are done; 0 between epochs.

    A `fit` that is called again in the middle of an epoch does only the rest of it: its first epoch
    ends early, by the batches that are done. Where the number of steps is another one by then, as
    it follows the number of ranks, the same fraction of the epoch is done. A script may as well
    call `fit` with `steps_per_epoch=steps - state.batch`, for one epoch.
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
            state: A state with an attribute `batch`.
        """
        super().__init__(state)
        self._before = self._steps = 0
        self._ends_early = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out where this call of `fit` goes on."""
        super().on_train_begin(logs)
        self._steps = int((self.params or {}).get("steps") or 0)
        self._before, self._ends_early = 0, False
        done = getattr(self.state, "batch", 0)
        if not isinstance(done, CountedBatches) or not done:
            return
        self._before = int(done)
        if done.of and self._steps == done.of - done:
            self._steps = done.of
        elif done.of and self._steps:
            self._before = done * self._steps // done.of
            self._ends_early = True

    def note_batch(self, batch: int) -> None:
        """Notes that a batch is done; a second call changes nothing."""
        done = self._before + batch + 1
        self.state.batch = _counted(done, self._steps)
        if self._ends_early and done >= self._steps and not self.model.stop_training:
            self.model.stop_training = _EPOCH_IS_OVER

    def note_epoch(self, epoch: int) -> None:
        """Notes that a new epoch begins."""
        self.state.batch = 0
        self._before, self._ends_early = 0, False
        if self.model.stop_training is _EPOCH_IS_OVER:
            self.model.stop_training = False


class UpdateEpochStateCallback(_Noting):
    """Keeps the number of finished epochs in `state.epoch`, over several calls of `fit`.

    For `model.fit(epochs=epochs - state.epoch)`, and as well for
    `model.fit(initial_epoch=state.epoch, epochs=epochs)`.
    """

    def __init__(self, state: Any) -> None:
        """Makes the callback.

        Args:
            state: A state with an attribute `epoch`.
        """
        super().__init__(state)
        self.initial_epoch = state.epoch
        self._first: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes from where this call of `fit` goes on."""
        super().on_train_begin(logs)
        self.initial_epoch = self.state.epoch
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the number that `fit` gives to its first epoch."""
        if self._first is None:
            self._first = epoch

    def note_epoch(self, epoch: int) -> None:
        """Notes that an epoch is done; a second call changes nothing."""
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1
