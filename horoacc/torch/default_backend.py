"""Makes "horoacc" the default backend in place of Gloo; see `horoacc.auto`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from horoacc.torch import process_group, rendezvous

_REPLACED = ("gloo", "mpi")


class _Installed:
    """Torch's function before."""

    original: Callable[..., Any] | None = None


def install() -> None:
    """Has torch.distributed use "horoacc" for CPU tensors from now on. A second call does nothing.

    Calls that name no backend, "gloo" or "mpi" are changed, also those that torch makes itself.
    What torch tells of a group, by `get_backend` for instance, stays what the script asked for:
    libraries compare it with the names that they know.
    """
    if _Installed.original is not None:
        return
    process_group.register()
    rendezvous.set_variables()
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        asked = c10d.Backend(str(bound.arguments["backend"]))
        bound.arguments["backend"] = c10d.Backend(replaced(str(asked)))
        token = process_group.called.set(stands_for(str(asked)))
        try:
            group, store = original(*bound.args, **bound.kwargs)
        finally:
            process_group.called.reset(token)
        if store is not None:  # this rank is a member
            c10d._world.pg_map[group] = (asked, store)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(asked))
        return group, store

    _Installed.original = original
    c10d._new_process_group_helper = make


def remove() -> None:
    """Lets torch.distributed choose its backends again. Groups that exist stay as they are."""
    if _Installed.original is None:
        return
    c10d._new_process_group_helper = _Installed.original
    _Installed.original = None


def stands_for(backend: str) -> str:
    """Says which backend of Gloo and MPI a group stands for.

    Args:
        backend: As for `replaced`.

    Returns:
        Its name; "horoacc" if it stands for none.
    """
    names = [pair.rpartition(":")[2] for pair in backend.split(",")]
    if backend == "undefined":
        names = ["gloo"]
    return next((name for name in names if name in _REPLACED), process_group.BACKEND)


def replaced(backend: str) -> str:
    """Says which backend takes the place of another.

    Args:
        backend: As for `init_process_group`: a name, "undefined", or a list of "device:name".

    Returns:
        The same with "horoacc" for CPU tensors instead of Gloo or MPI. Others stay.
    """
    if ":" in backend:
        pairs = [pair.split(":") for pair in backend.split(",")]
        return ",".join(
            f"{device}:{process_group.BACKEND if name in _REPLACED else name}"
            for device, name in pairs
        )
    if backend == "undefined" and torch.cuda.is_available():
        return f"cpu:{process_group.BACKEND},cuda:nccl"
    return process_group.BACKEND if backend in (*_REPLACED, "undefined") else backend
