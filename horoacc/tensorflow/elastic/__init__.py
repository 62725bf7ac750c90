"""Elastic training with TensorFlow: Horovod's `hvd.elastic`.

`TensorFlowState` holds variables beside plain objects, `TensorFlowKerasState` a Keras model and its
optimizer, and `run` goes back to the last commit after an error; `horoacc.elastic.loop` says after
which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horoacc import basics
from horoacc.elastic import ObjectState, State, run_fn
from horoacc.tensorflow import _ops
from horoacc.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from horoacc.tensorflow.failures import with_own_errors

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Makes a training function go back to its last commit after an error.

    Args:
        func: Takes a state, such as a `TensorFlowState`, and any further arguments.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        HorovodInternalError: From the function that is returned: one that the job cannot go on
            after. The state is that of the last commit.
    """
    return run_fn(with_own_errors(func), _rejoin)


def _rejoin() -> None:
    basics.shutdown()
    basics.init()
    _ops.attach()
