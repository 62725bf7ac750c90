"""Elastic training with TensorFlow: Horovod's `hvd.elastic`.

`TensorFlowState` holds variables beside plain objects, `TensorFlowKerasState` a Keras model and its
optimizer, and `run` goes back to the last commit after an error; `horoacc.elastic.loop` says after
which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horoacc.elastic import ObjectState, State, epoch, run_fn
from horoacc.elastic.loop import decorated, rejoin
from horoacc.tensorflow import _ops
from horoacc.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from horoacc.tensorflow.failures import with_own_errors

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "epoch", "run"]

R = TypeVar("R")


def run(func: Callable[..., R] | None = None, *, recover: str | None = None) -> Any:
    """Wraps a function that trains a `TensorFlowState`, say, as for `horoacc.elastic.run`.

    Args:
        func: Takes the state and any further arguments.
        recover: As there.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        ValueError: `recover` is not known.
    """

    def wrap(given: Callable[..., R], way: str | None) -> Callable[..., R]:
        return run_fn(with_own_errors(given), lambda: rejoin(_ops.attach), way)

    return decorated(func, recover, wrap)
