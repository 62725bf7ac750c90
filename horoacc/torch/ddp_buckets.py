"""Lets the buckets of DistributedDataParallel lie in the arena, where they are reduced in place.

A bucket is allocated by torch's `Reducer`, when it is made and when it rebuilds its buckets after
the first step; the allocator cannot tell such an allocation from others, so this module marks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from horoacc.torch import _ops


@contextmanager
def _bucket_memory() -> Iterator[None]:
    library = _ops.library()
    if library is None:
        yield
        return
    library.ha_torch_buckets(1)
    try:
        yield
    finally:
        library.ha_torch_buckets(-1)


class ArenaReducer(dist.Reducer):  # type: ignore[misc, name-defined]
    """torch's Reducer, with its buckets in the arena as HOROACC_ARENA says."""

    def __init__(self, *args: Any, **options: Any) -> None:
        with _bucket_memory():
            super().__init__(*args, **options)

    def _rebuild_buckets(self) -> bool:
        with _bucket_memory():
            return bool(super()._rebuild_buckets())


def place_in_arena() -> None:
    """Has every DistributedDataParallel that is made from now on use `ArenaReducer`."""
    dist.Reducer = ArenaReducer  # type: ignore[attr-defined]
