"""How ranks of torchrun, or of torch's env:// variables, find each other."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from horoacc.launcher.environment.placement import (
    Placement,
    PlacementError,
    Rendezvous,
    number,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

# Every init() of a process has keys of its own in the store; all ranks count alike.
_inits = itertools.count()


class _Open(Protocol):
    def __call__(self, placement: Placement, environ: Mapping[str, str], seconds: float) -> Store:
        """Connects to the job's key-value store."""


def _tcp_store(placement: Placement, environ: Mapping[str, str], seconds: float) -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # torchrun's agent hosts the store; with plain env:// variables rank 0 does, shared with
    # torch.distributed's own init_process_group in the same process (multi_tenant).
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        environ["MASTER_ADDR"],
        number(environ, "MASTER_PORT"),
        placement.size,
        placement.rank == 0 and not agent,
        timeout=timedelta(seconds=seconds),
        multi_tenant=True,
    )


def rendezvous(
    placement: Placement,
    environ: Mapping[str, str],
    seconds: float = 60.0,
    open_store: _Open = _tcp_store,
) -> Rendezvous:
    """Has rank 0 listen with a fresh secret, and tells the others through torch's store.

    The store of torchrun is not authenticated, so the secret is as safe as torchrun's own traffic.

    Raises:
        PlacementError: The store, or rank 0, did not answer in time.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "env")
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"horoacc/{run}/{restart}/{next(_inits)}"
    address = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    listener: socket.socket | None = None
    try:
        store = open_store(placement, environ, seconds)
        if placement.rank == 0:
            listener = _listen(environ["MASTER_ADDR"])
            host, port = listener.getsockname()[:2]
            meeting = {"address": f"{host}:{port}", "secret": secrets.token_hex(32)}
            store.set(f"{prefix}/meet", json.dumps(meeting))
        meeting = json.loads(store.get(f"{prefix}/meet"))
        # Rank 0 may host the store: it must not drop it before all ranks have read.
        if store.add(f"{prefix}/read", 1) == placement.size:
            store.set(f"{prefix}/all", "1")
        if placement.rank == 0:
            store.wait([f"{prefix}/all"], timedelta(seconds=seconds))
    except (RuntimeError, OSError) as error:
        if listener is not None:
            listener.close()
        raise PlacementError(
            f"rank {placement.rank} could not meet the others through torchrun's store at "
            f"{address} within {seconds:g} s: {error}"
        ) from error
    listen_fd = listener.detach() if listener is not None else None
    return Rendezvous(meeting["address"], listen_fd, meeting["secret"])


def _listen(master: str) -> socket.socket:
    """Listens on the address by which the other hosts know rank 0's, or on this host's own."""
    for host in (master, socket.gethostname()):
        try:
            address = socket.gethostbyname(host)
            return socket.create_server((address, 0), backlog=1024)
        except OSError:
            continue
    raise OSError(f"rank 0 can listen neither on {master} nor on this host's own address")
