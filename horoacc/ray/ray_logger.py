"""Brings what ranks tell of themselves to the callbacks of `RayExecutor.run`."""

from __future__ import annotations

import os
import warnings
from typing import Any

import cloudpickle

from horoacc.launcher import courier

EVENT = "log"
"""The name under which a rank of an elastic job sends it."""


class _Way:
    def __init__(self) -> None:
        self.queue: Any = None
        self.warned = False


_way = _Way()


def configure(queue: Any) -> None:
    """Says where this process's `log` goes.

    Args:
        queue: A `ray.util.queue.Queue`, or anything else with `put`; None: nowhere.
    """
    _way.queue = queue


def log(info_dict: dict[str, Any], chief_only: bool = True) -> None:
    """Gives something to the callbacks of the call that this rank runs in.

    Without callbacks to take it, a first call warns.

    Args:
        info_dict: What cloudpickle can pickle.
        chief_only: Whether only rank 0's calls count.
    """
    if chief_only and os.environ.get("HOROVOD_RANK") != "0":
        return
    if _way.queue is not None:
        _way.queue.put(info_dict)
    elif (post := courier.post()) is not None:
        post.send(EVENT, cloudpickle.dumps(info_dict))
    elif not _way.warned:
        _way.warned = True
        warnings.warn("ray_logger.log: the executor's call has no callbacks", stacklevel=2)
