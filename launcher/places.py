"""The places of ranks that a cluster starts, and where they meet.

A small file: ranks wait for what it imports.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

from horoacc.launcher.shim import place_variables

FOREIGN = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL")
"""Variables of a launcher around this program begin so; a rank is none of that one's job."""


class Place(NamedTuple):
    """Where a rank stands in its job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self) -> dict[str, str]:
        """The variables by which the rank knows it."""
        found = place_variables(*self[:4])
        for name, value in (("RANK", self.cross_rank), ("SIZE", self.cross_size)):
            found |= {f"{prefix}_CROSS_{name}": str(value) for prefix in ("HOROACC", "HOROVOD")}
        return found


def host_places(hosts: Sequence[str]) -> list[Place]:
    """Gives processes ranks, host after host.

    Args:
        hosts: The host of each process. The hosts, and the processes of a host, keep their order.

    Returns:
        The places, in the order of the processes. As in Horovod, only hosts that have a rank's
        local rank count for its cross rank.
    """
    members: dict[str, list[int]] = {}
    for at, host in enumerate(hosts):
        members.setdefault(host, []).append(at)
    found: dict[int, Place] = {}
    for host, here in members.items():
        for local, at in enumerate(here):
            row = [name for name, others in members.items() if len(others) > local]
            found[at] = Place(
                len(found), len(hosts), local, len(here), row.index(host), len(row)
            )  # fmt: skip
    return [found[at] for at in range(len(hosts))]


class MeetingPoint:
    """Where this process would meet the others, should it become rank 0.

    Attributes:
        address: Of the engine's rendezvous, host:port.
        master_port: Of torch's store, on the same host.
    """

    def __init__(self, host: str) -> None:
        """Listens.

        Args:
            host: An address of this host, of IPv4 or IPv6.

        Raises:
            OSError: It is none.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        # Bound and not listening: nobody else takes the port, but torch's store may.
        self._master = socket.socket(family, socket.SOCK_STREAM)
        self._master.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._master.bind((host, 0))
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._listener.getsockname()[1]}"
        self.master_port = int(self._master.getsockname()[1])

    def lend(self) -> int:
        """Gives the descriptor on which rank 0 listens; the caller owns it."""
        return self._listener.detach()

    def close(self) -> None:
        """Gives both ports back, but for a descriptor that was lent."""
        self._listener.close()
        self._master.close()


def meeting_variables(address: str, master_port: int) -> dict[str, str]:
    """The variables by which ranks find rank 0.

    Args:
        address: Of its `MeetingPoint`.
        master_port: The same.
    """
    host = address.rpartition(":")[0].strip("[]")
    return {
        "HOROACC_RENDEZVOUS": address,
        "HOROACC_MASTER": f"{host}:{master_port}",
        "MASTER_ADDR": host,
        "MASTER_PORT": str(master_port),
    }
