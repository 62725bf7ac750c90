"""The backend "horoacc" of torch.distributed.

import horoacc.torch

torch.distributed.init_process_group("horoacc")

A process group is a process set of the core that only its members know of. Its lowest rank claims
one and tells the others its number through torch's store, so that groups can be made by their
members alone (`use_local_synchronization=True`), as torch makes them anyway.
"""

from __future__ import annotations

import collections
import contextvars
import ctypes
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from horoacc import basics, process
from horoacc.errors import ConfigError
from horoacc.start import World
from horoacc.torch import _ops, ddp_buckets, monitored_barrier, rendezvous

BACKEND = "horoacc"
called: contextvars.ContextVar[str] = contextvars.ContextVar("called", default=BACKEND)
"""What torch says that the backend of a group which is being made is: under `horoacc.auto`, what
the script has asked for. The events of torch's profiler begin with it."""

# All members count how often a group of these ranks had a name: a store may outlive a group,
# and torch gives names again after the last one was destroyed.
_made: collections.Counter[tuple[str, str]] = collections.Counter()


def register() -> None:
    """Makes the backend known to torch.distributed, which `import horoacc.torch` does.

    It takes tensors in CPU memory and on CUDA GPUs.
    """
    if BACKEND.upper() in distributed_c10d.Backend._plugins or not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.extend_env()
    monitored_barrier.extend(BACKEND)


def _create(options: Any, _: Any) -> Any:
    """Makes this rank's part of a process group; called by torch on every member."""
    library = _ops.python_library()
    _join(options)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if ranks != sorted(ranks):
        raise ValueError(
            f"a process group of horoacc has its ranks in ascending order, not {ranks}; "
            "leave new_group's sort_ranks at True"
        )
    number = _meet(options, ranks)
    _ops.attach()
    ddp_buckets.place_in_arena()
    return library.ha_torch_backend(
        process.engine().address, number, (ctypes.c_int32 * len(ranks))(*ranks), len(ranks),
        options.group_rank, options.timeout.total_seconds(), str(options.group_id).encode(),
        called.get().encode(),
    )  # fmt: skip


def _join(options: Any) -> None:
    """Sees to it that this process has an engine, in the place that torch thinks it has."""
    if options.global_ranks_in_group:
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = options.group_rank, options.group_size
        basics.join_world(World(rank, size, options.store))
    place = process.position()
    if (place.rank, place.size) != (rank, size):
        raise ConfigError(
            f"torch.distributed has this process as rank {rank} of {size}, and horoacc.init() had "
            f"it as rank {place.rank} of {place.size}"
        )


def _meet(options: Any, ranks: list[int]) -> int:
    """Agrees on the core's number of a group, through torch's store."""
    engine = process.engine()
    name = str(options.group_id)
    members = ",".join(str(rank) for rank in ranks)
    key = f"horoacc/{members}/{_made[name, members]}"
    _made[name, members] += 1
    if options.group_rank != 0:
        text = options.store.get(key).decode()
        if not text.isdigit():
            raise ConfigError(f"rank {ranks[0]} could not make process group '{name}': {text}")
        engine.join_group(int(text), ranks)
        return int(text)
    try:
        number: int = engine.claim_group(ranks)
    except Exception as error:
        options.store.set(key, f"{type(error).__name__}: {error}")
        raise
    options.store.set(key, str(number))
    return number
