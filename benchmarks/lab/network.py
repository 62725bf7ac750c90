"""What a network looks like, and the commands of `ip` and `tc` that make it so. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MTU = 9000
# Less, and a shaped link falls short of its rate by what a timer oversleeps.
BURST = 256 << 10
# What a shaped link queues before it drops: some milliseconds at 1 Gbit/s, as a switch's port.
QUEUE = 2 << 20
# Packets that wait for the relay of a delay, a program that others keep from its core. The usual
# 500 are less than is under way over such a link, and what comes then is lost.
RELAY_QUEUE = 20_000
# bbr would pace below the rates asked for here, and the system's default varies.
CONGESTION = "cubic"
# With caps, flows are told apart by the port of the end that dialled. Linux gives even ports of
# the range to those that connect and odd ones to those that bind, so a port's parity tells which.
PORTS = range(40000, 40128)


@dataclass(frozen=True)
class Network:
    """Hosts h1, h2, …, each with one link a rail to the rail's switch."""

    hosts: int = 2
    rate: float | None = None
    """Bits a second of each link in each direction; None: as fast as the machine copies."""
    flow_cap: float | None = None
    """Bits a second that one TCP connection may use of a link; needs a rate."""
    rails: int = 1
    spine_rate: float | None = None
    """Bits a second of the link that joins two rails; None with two rails: not joined."""
    delay: float = 0.0
    """Seconds that each packet takes from host to host. Needs one rail and no cap."""

    def __post_init__(self) -> None:
        """Raises ValueError for a network that cannot be built."""
        if not 1 <= self.hosts <= 250:
            raise ValueError(f"a laboratory has 1 to 250 hosts, not {self.hosts}")
        if self.rails not in (1, 2):
            raise ValueError(f"a laboratory has one rail or two, not {self.rails}")
        if self.spine_rate is not None and self.rails == 1:
            raise ValueError("a spine joins two rails")
        if self.flow_cap is not None and self.rate is None:
            raise ValueError("a cap on flows needs a rate of the link")
        if self.delay and (self.rails > 1 or self.flow_cap is not None):
            raise ValueError("a delay is possible with one rail and without caps")
        if self.delay < 0 or any(r is not None and r <= 0 for r in self.rates):
            raise ValueError("rates are above 0, a delay at least 0")

    @property
    def rates(self) -> tuple[float | None, ...]:
        """All rates of it."""
        return self.rate, self.flow_cap, self.spine_rate

    @property
    def names(self) -> list[str]:
        """The hosts' names."""
        return [f"h{number}" for number in range(1, self.hosts + 1)]

    def address(self, host: int, rail: int = 0) -> str:
        """The address of host 0, 1, … on a rail."""
        return f"10.77.{rail}.{host + 1}"

    def hosts_file(self) -> str:
        """What resolves the hosts' names, to their addresses on the first rail."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(index)} {name}" for index, name in enumerate(self.names)]
        return "\n".join(lines) + "\n"


def fabric_links(network: Network, pids: Sequence[int]) -> list[str]:
    """`ip` commands for the switches and the cables to the hosts.

    Args:
        network: What to build.
        pids: A process in each host, whose network namespace gets the cable's far end.

    Returns:
        Lines for `ip -batch`, to be run where the switches are to be.
    """
    lines = ["link set lo up"]
    for rail in range(network.rails):
        lines += [f"link add rail{rail} type bridge", f"link set rail{rail} mtu {MTU} up"]
        for name, pid in zip(network.names, pids, strict=True):
            port = f"{name}.{rail}"
            lines += [
                f"link add {port} mtu {MTU} type veth peer name eth{rail} mtu {MTU} netns {pid}",
                f"link set {port} master rail{rail} up",
            ]
    if network.spine_rate is not None:
        lines += [
            f"link add spine0 mtu {MTU} type veth peer name spine1 mtu {MTU}",
            "link set spine0 master rail0 up",
            "link set spine1 master rail1 up",
        ]
    return lines


def host_links(network: Network, host: int) -> list[str]:
    """`ip` commands inside host 0, 1, …: addresses, and one way for each source address."""
    lines = ["link set lo up"]
    queue = f"txqueuelen {RELAY_QUEUE} " if network.delay else ""
    for rail in range(network.rails):
        device, address = f"eth{rail}", network.address(host, rail)
        route = f"dev {device} src {address} congctl {CONGESTION}"
        lines += [
            f"addr add {address}/24 dev {device} noprefixroute",
            f"link set {device} mtu {MTU} {queue}up",
            f"route add 10.77.{rail}.0/24 {route}",
        ]
        if network.spine_rate is not None:
            # What leaves an interface's address leaves by it, to the other rail over the spine.
            lines += [
                f"route add 10.77.0.0/16 {route} table {100 + rail}",
                f"rule add from {address} table {100 + rail}",
            ]
    return lines


def host_sysctls(network: Network) -> dict[str, str]:
    """Kernel settings inside a host."""
    # An interface answers for its own address only: each rail is a cable of its own.
    settings = {"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2"}
    settings["net.ipv6.conf.all.disable_ipv6"] = "1"
    if network.flow_cap is not None:
        settings["net.ipv4.ip_local_port_range"] = f"{PORTS.start} {PORTS.stop - 1}"
        settings["net.ipv4.tcp_tw_reuse"] = "1"
    return settings


def shape(device: str, rate: float, flow_cap: float | None = None) -> list[str]:
    """`tc` commands that bound what leaves a device.

    Args:
        device: Its name.
        rate: Bits a second.
        flow_cap: Bits a second of one TCP connection, or None.

    Returns:
        Lines for `tc -batch`.
    """
    if flow_cap is None:
        queue = f"burst {BURST} limit {QUEUE}"
        return [f"qdisc add dev {device} root tbf rate {rate:.0f}bit {queue}"]
    flows = len(PORTS) // 2
    # Equal guarantees, so that flows that reach no cap share the link.
    each = f"rate {rate / flows:.0f}bit ceil {flow_cap:.0f}bit burst {BURST} cburst {BURST}"
    whole = f"htb rate {rate:.0f}bit ceil {rate:.0f}bit burst {BURST} cburst {BURST} quantum 65536"
    add = f"add dev {device}"
    lines = [
        f"qdisc {add} root handle 1: htb default ffff",
        f"class {add} parent 1: classid 1:1 {whole}",
        f"class {add} parent 1:1 classid 1:ffff {whole}",
    ]
    for number, port in enumerate(range(PORTS.start, PORTS.stop, 2)):
        flow = f"1:{number + 2:x}"
        lines.append(f"class {add} parent 1:1 classid {flow} htb {each} quantum 65536")
        lines.append(f"qdisc {add} parent {flow} bfifo limit {QUEUE}")
        for side in ("sport", "dport"):
            lines.append(
                f"filter {add} parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff "
                f"match ip {side} {port} 0xffff flowid {flow}"
            )
    return lines
