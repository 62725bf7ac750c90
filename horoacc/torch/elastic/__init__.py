"""Elastic training with PyTorch: Horovod's `hvd.elastic`.

`TorchState` holds models, optimizers, schedulers and samplers beside plain objects,
`ElasticSampler` knows which samples of an epoch were processed, and `run` calls the training
function again after an error, with a whole state; `horoacc.elastic.loop` says after which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horoacc.elastic import ObjectState, State, epoch, run_fn
from horoacc.elastic.loop import decorated, rejoin
from horoacc.torch import _ops
from horoacc.torch.elastic.sampler import ElasticSampler
from horoacc.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "epoch", "run"]

R = TypeVar("R")


def run(func: Callable[..., R] | None = None, *, recover: str | None = None) -> Any:
    """Wraps a function that trains a `TorchState`, say, as for `horoacc.elastic.run`.

    Args:
        func: Takes the state and any further arguments.
        recover: As there.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        ValueError: `recover` is not known.
    """
    return decorated(func, recover, lambda f, way: run_fn(f, lambda: rejoin(_ops.attach), way))
