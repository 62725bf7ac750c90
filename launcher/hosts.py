"""Which hosts a job runs on: `-H host:slots,…` and host files."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# By which the operator tells Open MPI's mpirun, of either age, or Hydra's.
_HOSTFILES = (
    *("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    *("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
)


class HostsError(ValueError):
    """A host list that cannot be read; names the part or the line that is wrong."""


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it may take."""

    name: str
    slots: int

    def __str__(self) -> str:
        """As in the list of `-H`."""
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> list[Host]:
    """Reads `-H host:slots,host`: a host without a number has one slot, one named twice has all."""
    return _merged([_host(part.strip(), part.strip()) for part in text.split(",")])


def read_hostfile(path: str) -> list[Host]:
    """Reads a host file: a line is `host slots=4`, `host:4` or `host`; `#` starts a comment."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HostsError(f"host file {path}: {error}") from None
    hosts = []
    for count, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{count}: {line.strip()}"
        slots = [word[len("slots=") :] for word in words[1:] if word.startswith("slots=")]
        hosts.append(_host(words[0], where, *slots[:1]))
    if not hosts:
        raise HostsError(f"host file {path} names no host")
    return _merged(hosts)


def operator_hosts(environ: Mapping[str, str]) -> list[Host]:
    """The hosts that Kubeflow's MPI operator, or its Trainer, has written down for an mpirun."""
    for name in _HOSTFILES:
        if os.path.isfile(path := environ.get(name, "")):
            return read_hostfile(path)
    return []


def parse_host_lines(text: str, slots: int) -> list[Host]:
    """Reads what a discovery script prints: a line is `host:2` or `host`, which has `slots`."""
    hosts = []
    for line in filter(None, map(str.strip, text.splitlines())):
        hosts.append(_host(line, line, str(slots)))
    return _merged(hosts)


def is_this_host(name: str) -> bool:
    """Whether a name or address means the machine that this runs on."""
    own = {"localhost", "ip6-localhost", "::1", socket.gethostname(), socket.getfqdn()}
    if name in own or name.startswith("127."):
        return True
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return any(_can_bind(address) for address in addresses)


def address_of(name: str) -> tuple[str, socket.AddressFamily]:
    """A host's address by its name, IPv4 if it has one, and its family; OSError: it has none."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return str(address[0]), family


def _can_bind(address: str) -> bool:
    """Only addresses of this machine can be bound; no list of interfaces is needed."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _host(text: str, where: str, without: str = "1") -> Host:
    """Reads `host`, which has as many slots as `without` says, or `host:slots`; an IPv6 address may
    stand in brackets, and has to before slots.
    """
    if bracketed := re.fullmatch(r"\[([^][]+)\](?::(.*))?", text):
        name, slots = bracketed[1], without if bracketed[2] is None else bracketed[2]
    elif _is_ipv6(text) or ":" not in text:
        name, slots = text, without
    else:
        name, _, slots = text.rpartition(":")
    if not name or not re.fullmatch("[0-9]{1,9}", slots) or int(slots) < 1:
        raise HostsError(f"'{where}' is not host:slots with at least one slot")
    return Host(name, int(slots))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _merged(hosts: list[Host]) -> list[Host]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]
