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
    """The default backend before."""

    original: Callable[..., Any] | None = None
    cpu = ""


def install() -> None:
    """Has torch.distributed use "horoacc" for CPU tensors from now on. A second call does nothing.

    Calls that name no backend, "gloo" or "mpi" are changed, also those that torch makes itself.
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
        bound.arguments["backend"] = c10d.Backend(replaced(str(bound.arguments["backend"])))
        return original(*bound.args, **bound.kwargs)

    _Installed.original = original
    _Installed.cpu = c10d.Backend.default_device_backend_map["cpu"]
    c10d._new_process_group_helper = make
    c10d.Backend.default_device_backend_map["cpu"] = process_group.BACKEND


def remove() -> None:
    """Lets torch.distributed choose its backends again. Groups that exist stay as they are."""
    if _Installed.original is None:
        return
    c10d._new_process_group_helper = _Installed.original
    c10d.Backend.default_device_backend_map["cpu"] = _Installed.cpu
    _Installed.original = None


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
