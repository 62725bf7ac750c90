"""Starts the ranks of this host without MPI."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import subprocess
from collections.abc import Mapping

from horoacc.launcher.children import start_piped
from horoacc.launcher.kubernetes.pods import Share
from horoacc.launcher.places import FOREIGN
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.shim import hold_secret, place_variables
from horoacc.launcher.supervise import Supervisor


def start_ranks(
    supervisor: Supervisor,
    command: list[str],
    environ: Mapping[str, str],
    size: int,
    share: Share | None = None,
) -> None:
    """Starts every rank of this host and gives the supervisor charge of it.

    Without a share of a larger job, the port of the rendezvous is bound here and goes to rank 0 as
    an open socket, so that no other process can take it in between. The secret goes through a
    memory file, which this process keeps open, and never on a command line or by a variable.

    Raises:
        OSError: The program cannot be started, or there is no free port, process or pipe.
    """
    base = {name: value for name, value in environ.items() if not name.startswith(FOREIGN)}
    secret = hold_secret(share.secret if share else secrets.token_hex(32), base)
    first, whole = (share.first, share.size) if share else (0, size)
    die = die_with_parent()

    def prepare() -> None:
        die()
        # Before it can start anything that might outlive a killed launcher.
        supervisor.watchdog.add(os.getpid())

    with contextlib.ExitStack() as stack:
        listener = None
        if share is None:
            listener = socket.create_server(("127.0.0.1", 0), backlog=max(128, size))
            host, port = stack.enter_context(listener).getsockname()
        base["HOROACC_RENDEZVOUS"] = share.rendezvous if share else f"{host}:{port}"
        for local in range(size):
            rank = first + local
            own = base | place_variables(rank, whole, local, size)
            passed = [secret]
            if rank == 0 and listener is not None:
                passed.append(listener.fileno())
                own["HOROACC_RENDEZVOUS_FD"] = str(listener.fileno())
            pid, stdout, stderr = start_piped(command, own, stdin_for(rank), prepare, passed)
            supervisor.add_rank(rank, pid, stdout, stderr)
            supervisor.on_child_end(pid, functools.partial(supervisor.rank_ended, rank))


def stdin_for(rank: int) -> int | None:
    """Rank 0 inherits a pipe or file; no rank gets a terminal, for all run in its background."""
    if rank != 0:
        return subprocess.DEVNULL
    try:
        return subprocess.DEVNULL if os.isatty(0) else None
    except OSError:
        return subprocess.DEVNULL
