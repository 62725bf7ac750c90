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
    """As `horoacc.elastic.run`, for a function that takes a state such as a `TorchState`.

    Args:
        func: Takes the state and any further arguments.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        HorovodInternalError: From the function that is returned: one that the job cannot go on
            after. The state is that of the last commit.
    """
    return run_fn(func, _rejoin)


def _rejoin() -> None:
    rejoin()
    # A new engine has another arena.
    _ops.attach()
