"""Elastic training with TensorFlow: Horovod's `hvd.elastic`.

`TensorFlowState` holds variables beside plain objects, `TensorFlowKerasState` a Keras model and its
optimizer, and `run` goes back to the last commit after an error; `horoacc.elastic.loop` says after
which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horoacc.elastic import ObjectState, State, run_fn
from horoacc.elastic.loop import rejoin
from horoacc.tensorflow import _ops
from horoacc.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from horoacc.tensorflow.failures import with_own_errors

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Wraps a function that trains a `TensorFlowState`, say, as for `horoacc.elastic.run`.

    Returns:
        A function of the same arguments and result as `func`.
    """
    return run_fn(with_own_errors(func), lambda: rejoin(_ops.attach))
