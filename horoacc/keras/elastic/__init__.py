"""Elastic training with Keras: Horovod's `hvd.elastic`.

`KerasState` holds a model and its optimizer beside plain objects, the callbacks commit it and note
the progress of training, and `run` goes back to the last commit after an error;
`horoacc.elastic.loop` says after which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horoacc import basics
from horoacc.elastic import ObjectState, State, run_fn
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
    """Makes a training function go back to its last commit after an error.

    Args:
        func: Takes a state, such as a `KerasState`, and any further arguments.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        HorovodInternalError: From the function that is returned: one that the job cannot go on
            after. The state is that of the last commit.
    """
    return run_fn(backend.current().with_own_errors(func), _rejoin)


def _rejoin() -> None:
    basics.shutdown()
    basics.init()
    backend.current().attach()
