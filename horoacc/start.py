"""Makes the engine of a rank, from the variables of its launcher and the settings."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from horoacc import job_secret, mpi_plugins, selection_table, settings
from horoacc.errors import ConfigError
from horoacc.launcher import addresses, environment
from horoacc.launcher.environment import torchrun
from horoacc.launcher.environment.placement import by_host

if TYPE_CHECKING:
    from horoacc._core import Engine

_MEETING_BYTES = 4096  # of what rank 0 of a communicator tells the others


class World(NamedTuple):
    """The job as torch.distributed knows it when a process group is made."""

    rank: int
    size: int
    store: Any
    """Its key-value store, which all ranks reach."""
    meeting: str = ""
    """Of ranks that have left the job of their launcher: what they agree on."""


class Joined(NamedTuple):
    """What a rank has when it met the others."""

    engine: Engine
    bootstrap: str
    """How they met: "mpi", "tcp" or "none"."""
    name: str
    """Of this job, alike on its ranks and on no others; "" if it has no secret."""


def engine(comm: Any, world: World | None = None) -> Joined:
    """Joins the job that the environment describes.

    Args:
        comm: As for `horoacc.init`.
        world: The job as torch.distributed knows it; it overrides the environment.

    Returns:
        The engine, and how its ranks met.

    Raises:
        ConfigError: The environment or a setting cannot work.
        Timeout: Some ranks did not come.
        SystemExit: This process has no place in its elastic job any more.
    """
    from horoacc.elastic.member import member  # noqa: PLC0415 - imports modules that need this one
    from horoacc.process import is_elastic  # noqa: PLC0415 - the same

    if not is_elastic():
        return _engine(comm, world, {})
    own = member()
    return own.join(lambda: _engine(comm, world, {"check": own.check}))


def expected_place() -> tuple[int, ...] | None:
    """The place that a process will have which comes to a running elastic job; else None."""
    from horoacc.elastic import member  # noqa: PLC0415 - it imports modules that need this one

    return member.expected_place()


def _engine(comm: Any, world: World | None, more: dict[str, object]) -> Joined:
    try:
        # Imported late: horoaccrun works without the core, and reports that it is missing.
        from horoacc import _core  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the core of HoroACC cannot be loaded: {error}; install horoacc for this Python again"
        ) from error
    try:
        values = settings.core_settings(os.environ)
        place = environment.detect(os.environ)
        variables = job_secret.environ()
        if place.rank == 0 and "HOROACC_SECRET" not in variables:  # horoaccrun has printed them
            for line in settings.notices(os.environ):
                tell_once(line)
        where: dict[str, object]
        if world is not None and (world.meeting or (place.rank, place.size) != world[:2]):
            where = _world(world, float(values["start_timeout_seconds"]))
        elif comm is None or (_is_ranks(comm) and sorted(comm) == list(range(place.size))):
            where = _whole_job(place, values, variables)
        elif _is_ranks(comm):
            where = _some_ranks(place, sorted(comm), values)
        else:
            where = _communicator(comm, values)
        where |= _mpi(place) | more
        _use_table(values, where)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    name = job_secret.job_name(str(where.get("secret", "")))
    return Joined(_core.Engine(values, where), str(where["bootstrap"]), name)


@functools.cache
def tell_once(line: str) -> None:
    """Prints a line, also if `init()` is called again."""
    print(f"horoacc: {line}", file=sys.stderr)


def _use_table(values: dict[str, str], where: Mapping[str, object]) -> None:
    """Replaces the table's path by the table that rank 0 reads; it holds on all ranks."""
    values["selection_table"] = ""
    if where["rank"] != 0 or where["size"] == 1:
        return
    table = selection_table.load(os.environ, int(str(where["size"])))
    if table.warning:
        tell_once(table.warning)
    values["selection_table"] = table.rows
    if table.last_arriver_bytes is not None and not os.environ.get("HOROACC_LAST_ARRIVER_BYTES"):
        values["last_arriver_bytes"] = str(table.last_arriver_bytes)


def _mpi(place: environment.Placement) -> dict[str, object]:
    """Settings that lead the core to the one MPI of this process."""
    launcher = place.launcher
    if launcher == "slurm" and "PMIX_RANK" in os.environ:  # srun --mpi=pmix
        launcher = "openmpi"
    return {
        "mpi_plugin": str(mpi_plugins.FOLDER),
        "mpi_launcher": launcher,
        "mpi_library": str(settings.read(os.environ)["mpi_library"]),
        "mpi_prefix": sys.prefix,
    }


def _world(world: World, seconds: float) -> dict[str, object]:
    """Ranks that a script numbered itself, on one host: they meet through torch's store."""
    where = _position(world.rank, world.size, world.rank, world.size)
    if world.size == 1:
        return where | {"bootstrap": "none"}
    place = environment.Placement(
        world.rank, world.size, world.rank, world.size, 0, 1, "torch.distributed", "tcp"
    )
    master = {"MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1")}
    meeting = torchrun.rendezvous(place, master, seconds, lambda *_: world.store, world.meeting)
    return where | {
        "bootstrap": "tcp",
        "rendezvous": meeting.address,
        "rendezvous_fd": -1 if meeting.listen_fd is None else meeting.listen_fd,
        "secret": meeting.secret,
    }


def _is_ranks(comm: Any) -> bool:
    return isinstance(comm, Iterable) and all(isinstance(rank, int) for rank in comm)


def _whole_job(
    place: environment.Placement, values: dict[str, str], variables: Mapping[str, str]
) -> dict[str, object]:
    if values["control"] == "mpi" and place.bootstrap == "tcp":
        # Each rank would be an MPI job of its own.
        raise ConfigError(
            "setting 'control' can be 'mpi' only if one mpirun started all ranks, but "
            f"{place.launcher} did"
        )
    where: dict[str, object] = {
        "rank": place.rank,
        "size": place.size,
        "local_rank": place.local_rank,
        "local_size": place.local_size,
        "cross_rank": place.cross_rank,
        "cross_size": place.cross_size,
        "bootstrap": place.bootstrap,
    }
    seconds = float(values["start_timeout_seconds"])
    meeting = environment.rendezvous(place, variables, seconds)
    where["rendezvous"] = meeting.address
    where["rendezvous_fd"] = -1 if meeting.listen_fd is None else meeting.listen_fd
    where["secret"] = meeting.secret
    return where


def _some_ranks(
    place: environment.Placement, ranks: list[int], values: dict[str, str]
) -> dict[str, object]:
    """A job of some of the ranks: they meet through MPI, which knows them all."""
    if place.bootstrap == "mpi":
        _enter_mpi()
    if place.rank not in ranks:
        raise ConfigError(f"init() got the ranks {ranks}, but this process has rank {place.rank}")
    if len(ranks) == 1:
        return _position(0, 1, 0, 1) | {"bootstrap": "none"}
    if place.bootstrap != "mpi":
        raise ConfigError(
            f"init() got the ranks {ranks} of {place.size}: a job of some of the ranks needs MPI; "
            "without it, call init() on all ranks and give the collectives a process set"
        )
    from mpi4py import MPI  # noqa: PLC0415 - only needed to pass ranks

    group = MPI.COMM_WORLD.Get_group().Incl(ranks)
    return _communicator(MPI.COMM_WORLD.Create_group(group), values)


def _enter_mpi() -> None:
    """Initialises MPI, where all ranks wait for each other.

    Also a rank that needs no MPI, or that raises an error, does so: the others may need it.
    """
    with contextlib.suppress(ImportError):  # a caller that needs mpi4py gets an error
        from mpi4py import MPI  # noqa: F401, PLC0415 - only needed to pass ranks


def _communicator(comm: Any, values: dict[str, str]) -> dict[str, object]:
    """A job of an mpi4py communicator's processes: it tells them where to meet over TCP."""
    if not hasattr(comm, "Split_type"):
        raise ConfigError(
            f"init() takes a list of ranks or an mpi4py communicator, not a {type(comm).__name__}"
        )
    rank, size = comm.Get_rank(), comm.Get_size()
    # MPI_COMM_TYPE_SHARED has different values in different MPIs.
    from mpi4py import MPI  # noqa: PLC0415 - a communicator of mpi4py's is at hand

    if values["control"] == "mpi" and size > 1:
        # The core's messages go over MPI's world, which every rank must be in.
        everybody = MPI.COMM_WORLD.Get_group()
        if MPI.Group.Compare(comm.Get_group(), everybody) != MPI.IDENT:
            raise ConfigError(
                "setting 'control' can be 'mpi' only in a job of all of MPI's ranks in their order"
            )
    on_host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank, local_size = on_host.Get_rank(), on_host.Get_size()
    on_host.Free()
    where = _position(rank, size, local_rank, local_size)
    if size == 1:
        return where | {"bootstrap": "none"}
    listener: socket.socket | None = None
    told = bytearray(_MEETING_BYTES)
    if rank == 0:
        names = [] if local_size == size else [socket.gethostname()]
        listener, place = addresses.listen(names, max(128, size))
        told[:] = json.dumps([place, secrets.token_hex(32)]).encode().ljust(_MEETING_BYTES)
    comm.Bcast([told, MPI.BYTE], root=0)  # bcast() would unpickle what comes
    address, secret = map(str, json.loads(told))
    return where | {
        "bootstrap": "tcp",
        "rendezvous": address,
        "rendezvous_fd": -1 if listener is None else listener.detach(),
        "secret": secret,
    }


def _position(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, object]:
    cross_rank, cross_size = by_host(rank, size, local_rank, local_size)
    return {
        "rank": rank,
        "size": size,
        "local_rank": local_rank,
        "local_size": local_size,
        "cross_rank": cross_rank,
        "cross_size": cross_size,
    }
