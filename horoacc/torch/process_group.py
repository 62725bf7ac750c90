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

# All members count how often a group of these ranks had a name in a job: a store may outlive a
# group and a job, and torch gives names again after the last group was destroyed.
_made: collections.Counter[tuple[str, str, str]] = collections.Counter()


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
    _ops.python_library()  # before it joins: an error of its build is raised on every rank
    _join(options)
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if ranks != sorted(ranks):
        raise ValueError(
            f"a process group of horoacc has its ranks in ascending order, not {ranks}; "
            "leave new_group's sort_ranks at True"
        )
    name, seconds = str(options.group_id), options.timeout.total_seconds()
    return make(options.store, name, ranks, options.group_rank, seconds, called.get())


def make(store: Any, name: str, ranks: list[int], rank: int, seconds: float, told: str) -> Any:
    """Makes this rank's part of a process group of the engine's ranks.

    Args:
        store: Torch's, of the group.
        name: The group's.
        ranks: Its ranks in the engine, ascending.
        rank: This process's in the group.
        seconds: How long a call may take.
        told: What torch says that its backend is.

    Returns:
        A `torch.distributed.distributed_c10d.Backend` of torch's C++ side.

    Raises:
        ConfigError: Its lowest rank could not make it.
    """
    number = _meet(store, name, ranks, rank)
    _ops.attach()
    ddp_buckets.place_in_arena()
    return _ops.python_library().ha_torch_backend(
        process.engine().address, number, (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), rank,
        seconds, name.encode(), told.encode(),
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


def _meet(store: Any, name: str, ranks: list[int], rank: int) -> int:
    """Agrees on the core's number of a group, through torch's store."""
    engine = process.engine()
    which = (process.job_name(), name, ",".join(str(rank) for rank in ranks))
    key = f"horoacc/{which[0]}/{which[2]}/{_made[which]}"
    _made[which] += 1
    if rank != 0:
        text = store.get(key).decode()
        if not text.isdigit():
            raise ConfigError(f"rank {ranks[0]} could not make process group '{name}': {text}")
        engine.join_group(int(text), ranks)
        return int(text)
    try:
        number: int = engine.claim_group(ranks)
    except Exception as error:
        store.set(key, f"{type(error).__name__}: {error}")
        raise
    store.set(key, str(number))
    return number
