"""Elastic training with Keras: Horovod's `hvd.elastic`.

`KerasState` holds a model and its optimizer beside plain objects, the callbacks commit it and note
the progress of training, and `run` goes back to the last commit after an error;
`horoacc.elastic.loop` says after which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horoacc.elastic import ObjectState, State, epoch, run_fn
from horoacc.elastic.loop import decorated, rejoin
from horoacc.keras import backend
from horoacc.keras.elastic.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from horoacc.keras.elastic.state import KerasState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "epoch",
    "run",
]

R = TypeVar("R")


def run(func: Callable[..., R] | None = None, *, recover: str | None = None) -> Any:
    """Wraps a function that trains a `KerasState`, say, as for `horoacc.elastic.run`.

    Args:
        func: Takes the state and any further arguments.
        recover: As there.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        ValueError: `recover` is not known.
    """

    def wrap(given: Callable[..., R], way: str | None) -> Callable[..., R]:
        own = backend.current()
        return run_fn(own.with_own_errors(given), lambda: rejoin(backend.current().attach), way)

    return decorated(func, recover, wrap)
