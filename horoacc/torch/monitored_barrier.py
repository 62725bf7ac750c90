"""Lets `torch.distributed.monitored_barrier` work on groups of the backend "horoacc".

torch's own function asks for Gloo by name before it asks the group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def extend(backend: str) -> None:
    """Replaces torch's function by one that also knows a backend. A second call does nothing.

    Args:
        backend: The backend's name.
    """
    original: Callable[..., Any] = c10d.monitored_barrier
    if getattr(original, "of_horoacc", False):
        return

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        known: Any = group if group is not None else c10d._get_default_group()
        if known is c10d.GroupMember.NON_GROUP_MEMBER or not _serves(known, backend):
            return original(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = c10d.default_pg_timeout
        elif isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        return known.monitored_barrier(timeout, wait_all_ranks)

    monitored_barrier.of_horoacc = True  # type: ignore[attr-defined]
    c10d.monitored_barrier = monitored_barrier
    dist.monitored_barrier = monitored_barrier


def _serves(group: Any, backend: str) -> bool:
    """Whether a group's CPU tensors go to the backend."""
    try:
        return bool(group._get_backend(torch.device("cpu")).name() == backend)
    except RuntimeError:
        return False
