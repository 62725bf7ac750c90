"""Starts the ranks of this host without MPI."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Mapping

from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.supervise import Supervisor

# Variables of an MPI launcher around this one; a rank must not take itself for one of its job.
_FOREIGN = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL")


def start_ranks(
    supervisor: Supervisor, command: list[str], environ: Mapping[str, str], size: int
) -> None:
    """Starts every rank and gives the supervisor charge of it.

    The port of the rendezvous is bound here and goes to rank 0 as an open socket, so that no other
    process can take it in between. The secret goes through the environment, which only the same
    user can read, and never on a command line.

    Args:
        supervisor: Takes charge of them.
        command: The program and its arguments.
        environ: The variables for all ranks.
        size: How many.

    Raises:
        OSError: The program cannot be started, or there is no free port, process or pipe.
    """
    base = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
    base["HOROACC_SECRET"] = secrets.token_hex(32)
    with socket.create_server(("127.0.0.1", 0), backlog=max(128, size)) as listener:
        host, port = listener.getsockname()
        base["HOROACC_RENDEZVOUS"] = f"{host}:{port}"
        for rank in range(size):
            own = base | _position(rank, size)
            passed: tuple[int, ...] = ()
            if rank == 0:
                passed = (listener.fileno(),)
                own["HOROACC_RENDEZVOUS_FD"] = str(listener.fileno())
            _start(supervisor, command, own, rank, passed)


def _position(rank: int, size: int) -> dict[str, str]:
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size}
    values |= {"CROSS_RANK": 0, "CROSS_SIZE": 1}
    # Horovod's launcher sets its names too when it runs without MPI, and scripts look at them.
    return {
        f"{prefix}_{name}": str(value)
        for prefix in ("HOROACC", "HOROVOD")
        for name, value in values.items()
    } | {"HOROVOD_HOSTNAME": socket.gethostname()}


def _start(
    supervisor: Supervisor,
    command: list[str],
    environ: Mapping[str, str],
    rank: int,
    passed: tuple[int, ...],
) -> None:
    stdout, stdout_end = os.pipe()
    stderr, stderr_end = os.pipe()
    try:
        child = subprocess.Popen(
            command,
            env=environ,
            stdin=stdin_for(rank),
            stdout=stdout_end,
            stderr=stderr_end,
            pass_fds=passed,
            start_new_session=True,
            # Before it can start anything that might outlive a killed launcher.
            preexec_fn=supervisor.watchdog.guarded(die_with_parent()),
        )
    except OSError:
        os.close(stdout)
        os.close(stderr)
        raise
    finally:
        os.close(stdout_end)
        os.close(stderr_end)
    child.returncode = 0  # the supervisor waits for it, not this object
    supervisor.add_rank(rank, child.pid, stdout, stderr)
    supervisor.on_child_end(child.pid, lambda status: supervisor.rank_ended(rank, status))


def stdin_for(rank: int) -> int | None:
    """Rank 0 inherits a pipe or file; no rank gets a terminal, for all run in its background."""
    if rank != 0:
        return subprocess.DEVNULL
    try:
        return subprocess.DEVNULL if os.isatty(0) else None
    except OSError:
        return subprocess.DEVNULL
