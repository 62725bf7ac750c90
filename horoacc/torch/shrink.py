"""`torch.distributed.shrink_group` of the backend "horoacc": the ranks that are left go on.

An engine is that of a fixed set of ranks, so the ranks that are left of the default group leave
theirs, meet through torch's store and make a new one, in which they are renumbered in their order.
A smaller group of an engine that works is a new group of that engine.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from horoacc import basics, process, settings
from horoacc.errors import ConfigError, HorovodInternalError
from horoacc.start import World
from horoacc.torch import process_group


def shrink(name: str, excluded: list[int], seconds: float, told: str) -> Any:
    """Makes the backend of the ranks that are left of a group; called by torch's C++ side.

    Args:
        name: The group's.
        excluded: Its ranks that do not go on, ascending.
        seconds: How long a call of the new group may take.
        told: What torch says that the group's backend is.

    Returns:
        The backend.

    Raises:
        ConfigError: The group or the job cannot shrink.
        HorovodInternalError: Another rank died while the ranks met.
    """
    group = next((one for one, its in c10d._world.pg_names.items() if its == name), None)
    if group is None:
        raise ConfigError(f"torch.distributed knows no process group '{name}' any more")
    store = c10d._world.pg_map[group][1]
    ranks = [rank for rank in range(group.size()) if rank not in excluded]
    place = ranks.index(group.rank())
    which = f"shrink/{name}/" + ",".join(str(rank) for rank in ranks)
    if group == c10d._get_default_group():
        _join_again(World(place, len(ranks), store, which), which)
        own = list(range(len(ranks)))
    else:
        known = sorted(c10d._world.pg_group_ranks[group])
        own = [known[rank] for rank in ranks]
    try:
        made = process_group.make(store, which, own, place, seconds, told)
        if len(own) > 1:
            made.barrier().wait()  # a job that has failed says so
        return made
    except (HorovodInternalError, dist.DistBackendError) as error:
        again = "call shrink_group again and exclude that rank, too"
        if group != c10d._get_default_group():
            again = "shrink the default group, as shrink_group(ranks) does, and make this one again"
        raise ConfigError(
            f"process group '{name}' cannot shrink, because the job has failed: {again}: {error}"
        ) from error


def _join_again(world: World, which: str) -> None:
    """Leaves the job and joins that of the ranks that are left."""
    if "HOROACC_WORKER" in os.environ:
        raise ConfigError("in an elastic job horoacc.elastic.run shrinks the job, not shrink_group")
    if settings.read(os.environ)["control"] == "mpi":
        raise ConfigError("shrink_group needs ranks without MPI, and setting 'control' is 'mpi'")
    with contextlib.suppress(HorovodInternalError):  # the job has failed
        basics.shutdown()
    try:
        basics.join_world(world)
    except ConfigError as error:
        raise ConfigError(
            f"the ranks that are left could not meet ({which}): {error}. Torch's store must "
            "outlive the rank that died, and all that are left must exclude the same ranks"
        ) from error
    if process.position()[:2] != world[:2]:
        raise ConfigError("horoacc.init() was called between")
