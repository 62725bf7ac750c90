"""Horovod's description of hosts and of ranks on them, which its users' launch scripts import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horoacc.launcher import hosts as launcher


@dataclass
class HostInfo:
    """A host, and how many ranks may run there."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Reads "host:slots".

        Args:
            host_string: The text.

        Returns:
            The host.

        Raises:
            ValueError: It is no such text.
        """
        (host,) = parse_hosts(host_string)
        return host


@dataclass
class SlotInfo:
    """The place of a rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int | None = None
    local_size: int | None = None
    cross_size: int | None = None


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Reads a list of hosts.

    Args:
        hosts_string: "host:slots,…", as for `-H`.

    Returns:
        The hosts, in order.

    Raises:
        ValueError: It is no such list.
    """
    return [HostInfo(host.name, host.slots) for host in launcher.parse_hosts(hosts_string)]


def parse_host_files(filename: str) -> str:
    """Reads a host file.

    Args:
        filename: Where it is; a line has "host slots=2" or "host:2".

    Returns:
        The hosts as text for `-H`.

    Raises:
        ValueError: It cannot be read.
    """
    found = launcher.read_hostfile(filename)
    return ",".join(f"{host.name}:{host.slots}" for host in found)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Gives ranks their places: host by host, each filled before the next.

    Args:
        hosts: The hosts.
        min_num_proc: The number of ranks that must find a place.
        max_num_proc: The number of ranks to place if there is room; None: as many as there is.

    Returns:
        The places by rank.

    Raises:
        ValueError: There are not enough slots.
    """
    room = sum(host.slots for host in hosts)
    if room < min_num_proc:
        raise ValueError(f"{min_num_proc} ranks do not fit into {room} slots")
    left = size = room if max_num_proc is None else min(room, max_num_proc)
    counts = []
    for host in hosts:
        counts.append(min(host.slots, left))
        left -= counts[-1]
    places: list[SlotInfo] = []
    for index, (host, count) in enumerate(zip(hosts, counts, strict=True)):
        for local in range(count):
            across = [local < other for other in counts]
            places.append(SlotInfo(
                host.hostname, len(places), local, sum(across[:index]), size, count, sum(across),
            ))  # fmt: skip
    return places
