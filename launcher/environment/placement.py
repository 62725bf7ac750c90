"""The place of a rank in its job, and the address of the rendezvous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Bootstrap = Literal["tcp", "mpi", "none"]


class PlacementError(ValueError):
    """A launcher's variables have impossible values."""


@dataclass(frozen=True)
class Placement:
    """The place of a process in its job, as its launcher gave it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    launcher: str
    """horoaccrun, torchrun, openmpi, mpich, kubernetes, kubeflow, slurm or single."""
    bootstrap: Bootstrap
    """How the ranks find each other."""

    def __post_init__(self) -> None:
        """Raises PlacementError if a rank lies outside its size."""
        pairs = (
            ("rank", self.rank, self.size),
            ("local rank", self.local_rank, self.local_size),
            ("cross rank", self.cross_rank, self.cross_size),
        )
        for name, rank, size in pairs:
            if not 0 <= rank < size:
                raise PlacementError(
                    f"{self.launcher} says that this process has {name} {rank} of {size}"
                )


@dataclass(frozen=True)
class Rendezvous:
    """How a rank reaches rank 0 in a rendezvous over TCP."""

    address: str
    """host:port"""
    listen_fd: int | None
    """On rank 0 a socket that listens there already, or None: then rank 0 binds the address."""
    secret: str
    """The job's secret, in hexadecimal digits."""


def number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Reads a whole number that a launcher set, or gives the default; PlacementError names it."""
    text = environ.get(name, "")
    if text == "" and default is not None:
        return default
    try:
        return int(text)
    except ValueError:
        what = f"is '{text}'" if text else "is missing"
        raise PlacementError(f"{name} {what}; a launcher sets it to a whole number") from None


def count(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Like `number`, of something of which there must be one at least."""
    value = number(environ, name, default)
    if value < 1:
        raise PlacementError(f"{name} is '{value}'; a launcher sets it to 1 at least")
    return value


def by_host(rank: int, size: int, local_rank: int, local_size: int) -> tuple[int, int]:
    """Cross rank and cross size for launchers that do not tell them.

    Exact if hosts are filled one after the other and have the same number of ranks; the core asks
    every rank for its host and corrects the rest.
    """
    hosts = -(-size // local_size)
    return min(max(rank - local_rank, 0) // local_size, hosts - 1), hosts
