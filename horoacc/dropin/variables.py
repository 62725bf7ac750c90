"""Horovod's questions about the environment, which its users' launch scripts import, and `env`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", ".*_SECRET(_KEY)?"}
"""Variables that are not for other hosts."""
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"


def is_exportable(v: str) -> bool:
    """Says whether a variable may be passed to ranks on other hosts.

    Args:
        v: Its name.

    Returns:
        True if no pattern of `IGNORE_REGEXES` matches it.
    """
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Reads rank and size from the variables of a launcher, without `init()`.

    Returns:
        Both; 0 and 1 if no launcher started this process.

    Raises:
        RuntimeError: Only one of two variables that belong together is there.
    """
    launchers = ("HOROVOD", "OMPI_COMM_WORLD", "PMI")
    for prefix in launchers:
        rank, size = os.environ.get(f"{prefix}_RANK"), os.environ.get(f"{prefix}_SIZE")
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            missing = "SIZE" if size is None else "RANK"
            raise RuntimeError(
                f"the environment has one of {prefix}_RANK and {prefix}_SIZE, but not "
                f"{prefix}_{missing}"
            )
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Says whether Kubeflow's MPI operator started this process.

    Returns:
        True if so.
    """
    return os.environ.get("OMPI_MCA_" + "plm_rsh_agent") == KUBEFLOW_MPI_EXEC


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets environment variables for the time of a `with` block.

    Args:
        variables: Values by name; None leaves a variable alone.
    """
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
