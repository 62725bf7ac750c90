"""Elastic training with Keras: Horovod's `hvd.elastic`.

`KerasState` holds a model and its optimizer beside plain objects, the callbacks commit it and note
the progress of training, and `run` goes back to the last commit after an error;
`horoacc.elastic.loop` says after which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horoacc.elastic import ObjectState, State, run_fn
from horoacc.elastic.loop import rejoin
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
    "run",
]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Wraps a function that trains a `KerasState`, say, as for `horoacc.elastic.run`.

    Returns:
        A function of the same arguments and result as `func`.
    """
    return run_fn(backend.current().with_own_errors(func), lambda: rejoin(backend.current().attach))
