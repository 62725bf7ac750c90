"""Elastic training with PyTorch: Horovod's `hvd.elastic`.

`TorchState` holds models, optimizers, schedulers and samplers beside plain objects,
`ElasticSampler` knows which samples of an epoch were processed, and `run` goes back to the last
commit after an error; `horoacc.elastic.loop` says after which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from horoacc.elastic import ObjectState, State, run_fn
from horoacc.elastic.loop import rejoin
from horoacc.torch import _ops
from horoacc.torch.elastic.sampler import ElasticSampler
from horoacc.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Wraps a function that trains a `TorchState`, say, as for `horoacc.elastic.run`.

    Returns:
        A function of the same arguments and result as `func`.
    """
    return run_fn(func, lambda: rejoin(_ops.attach))
