"""The rendezvous of torch.distributed where nobody has chosen MASTER_ADDR and MASTER_PORT.

torchrun sets the variables that `init_process_group` reads by default (env://). Under mpirun they
may be missing, and under horoaccrun they are the launcher's, for programs that read them; then the
ranks meet as those of `horoacc.init()` do, and rank 0 opens torch's store at a port of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from torch.distributed import distributed_c10d as c10d

from horoacc import basics, process
from horoacc.launcher import environment
from horoacc.launcher.addresses import ELSEWHERE, address_towards
from horoacc.launcher.environment.placement import Placement
from horoacc.objects import allgather_object, broadcast_object

# torch.distributed has a function that hides this module's name.
_torchs: Any = importlib.import_module("torch.distributed.rendezvous")
_TCPStore: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def extend_env() -> None:
    """Has env:// work under every launcher that HoroACC recognises. A second call does nothing."""
    original = _torchs._rendezvous_handlers["env"]
    if getattr(original, "of_horoacc", False):
        return

    def env(url: str, **options: Any) -> Any:
        place = environment.detect(os.environ)
        asked = dict(parse_qsl(urlsplit(url).query))
        if asked:  # init_process_group(rank=, world_size=), perhaps of a part of the job
            is_job = asked == {"rank": str(place.rank), "world_size": str(place.size)}
            known = not is_job or all(os.environ.get(name) for name in _NEEDED[2:])
        else:
            known = all(os.environ.get(name) for name in _NEEDED) and not _are_horoaccruns(place)
        if known or place.launcher == "single":
            return original(url, **options)
        return _meet(options.get("timeout", c10d.default_pg_timeout))

    env.of_horoacc = True  # type: ignore[attr-defined]
    _torchs._rendezvous_handlers["env"] = env


def set_variables() -> None:
    """Sets the variables of torchrun that scripts read, where another launcher did not."""
    place = environment.detect(os.environ)
    if place.launcher == "single":
        return
    for name, value in (
        ("RANK", place.rank),
        ("WORLD_SIZE", place.size),
        ("LOCAL_RANK", place.local_rank),
        ("LOCAL_WORLD_SIZE", place.local_size),
    ):
        os.environ.setdefault(name, str(value))


def _are_horoaccruns(place: Placement) -> bool:
    """Whether the variables are those that horoaccrun gave this rank, and no part of them changed:
    a program may start processes that meet among themselves.
    """
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    given = (address, os.environ["RANK"], os.environ["WORLD_SIZE"])
    return given == (os.environ.get("HOROACC_MASTER"), str(place.rank), str(place.size))


def _machine() -> tuple[str, str]:
    """This host's name, and what tells it apart: clones, and containers, may have equal names."""
    told = ""
    with contextlib.suppress(OSError):
        told = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink(
            "/proc/self/ns/net"
        )
    return socket.gethostname(), told


def _listener(machines: list[tuple[str, str]]) -> socket.socket:
    """A socket for the store of rank 0, at the address that leads to the other hosts' ranks.

    By itself torch's server listens on all interfaces, and it asks nobody for anything.
    """
    others = [name for name, told in machines if (name, told) != machines[0]]
    family, host = socket.AF_INET, "" if others else "127.0.0.1"  # "": no way is known
    named = [name for name in others[:1] if name != machines[0][0]]
    for other in (*named, *ELSEWHERE) if others else ():
        with contextlib.suppress(OSError):
            family, host = address_towards(other)
            break
    return socket.create_server((host, 0), family=family, backlog=max(128, len(machines)))


def _meet(timeout: timedelta) -> Iterator[tuple[Any, int, int]]:
    basics.init()
    place = process.position()
    machines = allgather_object(_machine(), name="horoacc.torch.hosts")
    store: Any = None
    host, port = "", 0
    if place.rank == 0:
        listener = _listener(machines)
        host, port = listener.getsockname()[:2]
        host = machines[0][0] if host == "0.0.0.0" else host
        server = listener.detach()
        store = _TCPStore(host, port, None, True, timeout, False, master_listen_fd=server)
    host, port = broadcast_object((host, port), root_rank=0, name="horoacc.torch.store")
    if store is None:
        store = _TCPStore(host, port, None, False, timeout)
    yield store, place.rank, place.size
    raise RuntimeError("the ranks of a job of HoroACC meet only once")
