"""What `horoaccrun doctor` finds between hosts: names, connections, interfaces, clocks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from horoacc.launcher.doctor.findings import Finding
from horoacc.launcher.doctor.hosts import Seen

_CLOCK_SECONDS = 1.0  # timelines and logs of two hosts are then of no use beside each other
_NAT = "let {other}'s name lead to an address of its own network (DNS or /etc/hosts)"
_FIREWALL = {
    "refused": "a firewall on {other} rejects it, or the name leads to another machine: open TCP "
    "between the hosts, on all ports (docs/networks.md)",
    "timed out": "a firewall drops it, or there is no way back: open TCP between the hosts, on all "
    "ports, in both directions",
}
_NO_ROUTE = "there is no route, or a firewall forbids it: see `ip route get` on {host}"
_BLACK_HOLE = (
    "small packets pass and large ones do not: let both ends and the switches have one MTU, or let "
    "ICMP 'fragmentation needed' pass"
)


def judge(hosts: Sequence[Seen], chosen: Sequence[str]) -> Iterator[Finding]:
    """The findings about hosts that were reached.

    Args:
        hosts: All of the job; those that were not reached are left out.
        chosen: The interfaces of --network-interfaces.
    """
    reached = [host for host in hosts if host.unreached is None]
    for host in reached:
        yield from _names(host, len(hosts) > 1)
    for host in reached:
        yield from _ports(host)
    yield from _same_names(reached)
    for host in reached:
        yield from _interfaces(host, chosen, len(hosts) > 1)
    yield from _mtus(reached)
    for host in reached:
        if not host.here:
            yield _clock(host)


def _names(host: Seen, several: bool) -> Iterator[Finding]:
    """What its own host name and the other hosts' names stand for, and whether they lead back."""
    good = []
    own = host.facts["hostname"]
    # The name in -H may be another one, or an address; programs ask for the host's own.
    for name, met in host.met.items():
        names = met["names"]
        mine = name in (own, host.name)
        addresses = names.get("addresses", {})
        if not addresses:
            told = f"'{name}' does not resolve: {names['error']}"
            advice = f"add {name} to DNS, or to /etc/hosts of {host.name}"
            yield Finding("names", "warning" if mine else "error", host.name, told, advice)
            continue
        first = next(iter(addresses))
        shown = f"{name} is {first}"
        if several and _is_loopback(first):
            told = f"{shown}, which only {host.name} itself reaches"
            advice = f"give {name} its network's address in /etc/hosts of {host.name}"
            yield Finding("names", "warning" if mine else "error", host.name, told, advice)
        elif several and not addresses[first] and first != name:
            advice = "harmless for HoroACC; ssh and MPI may wait for it: add a PTR record or a line"
            told = f"{shown}, and no name leads back from there"
            yield Finding("names", "warning", host.name, told, f"{advice} in /etc/hosts")
        else:
            good.append(shown)
    if good:
        yield Finding("names", "ok", host.name, ", ".join(good))


def _ports(host: Seen) -> Iterator[Finding]:
    good = []
    for other, met in host.met.items():
        for address, end in met["ends"].items():
            shown = f"TCP to {other} ({address})"
            how = end["end"]
            if how == "ok" and end["name"] != other:
                told = f"{shown} reaches {end['name'] or 'another machine'}"
                yield Finding("ports", "error", host.name, told, _NAT.format(other=other))
            elif how == "ok":
                good.append(f"{other} ({address})")
            elif end["step"] != "connecting":
                told = f"{shown} connects, but {end['step']} did not get through: {how}"
                yield Finding("ports", "error", host.name, told, _BLACK_HOLE)
            else:
                advice = _FIREWALL.get(how, _NO_ROUTE).format(host=host.name, other=other)
                yield Finding("ports", "error", host.name, f"{shown}: {how}", advice)
    if good:
        yield Finding("ports", "ok", host.name, f"TCP to {', '.join(good)}")


def _same_names(hosts: Sequence[Seen]) -> Iterator[Finding]:
    by_name: dict[str, list[Seen]] = {}
    for host in hosts:
        by_name.setdefault(host.facts["hostname"], []).append(host)
    for name, same in by_name.items():
        for host in same[1:]:
            told = f"its host name is '{name}', as {same[0].name}'s"
            advice = "give each host a name of its own (hostnamectl, docker run --hostname): ranks "
            advice += "of hosts with one name take each other for neighbours and fail in init()"
            yield Finding("names", "error", host.name, told, advice)


def _interfaces(host: Seen, chosen: Sequence[str], several: bool) -> Iterator[Finding]:
    known = {one["name"]: one for one in host.facts["interfaces"]}
    for name in chosen:
        one = known.get(name)
        if one is None:
            why = f"has no interface {name}, only {', '.join(known)}"
        elif not one["up"] or not one["address"]:
            why = f"{name} is down" if not one["up"] else f"{name} has no address"
        else:
            yield Finding("interfaces", "ok", host.name, f"chosen: {_shown(one)}")
            continue
        advice = "name one that is up on every host in --network-interfaces"
        yield Finding("interfaces", "error", host.name, why, advice)
    if chosen:
        return
    usable = _usable(host)
    told = ", ".join(_shown(one) for one in usable) or "only the loopback interface"
    down = [n for n, one in known.items() if one["address"] and not one["up"]]
    if not usable and several:
        advice = "give it a network (docker run --network), and see `ip link`"
        yield Finding("interfaces", "error", host.name, told, advice)
    elif down:
        advice = f"see `ip link show {down[0]}`: its cable or its other end is gone"
        yield Finding("interfaces", "warning", host.name, f"{', '.join(down)} down; {told}", advice)
    elif several and len({ipaddress.ip_interface(one["address"]).network for one in usable}) > 1:
        advice = "ranks use the network that leads to the first host: choose the data's with "
        advice += f"--network-interfaces {usable[0]['name']}"
        yield Finding("interfaces", "warning", host.name, f"several networks: {told}", advice)
    else:
        yield Finding("interfaces", "ok", host.name, told)


def _mtus(hosts: Sequence[Seen]) -> Iterator[Finding]:
    """Interfaces of one network have one MTU, or large packets get lost."""
    networks: dict[Any, list[tuple[Seen, dict[str, Any]]]] = {}
    for host in hosts:
        for one in _usable(host):
            network = ipaddress.ip_interface(one["address"]).network
            networks.setdefault(network, []).append((host, one))
    for network, members in networks.items():
        most = max(one["mtu"] for _, one in members)
        for host, one in members:
            if one["mtu"] < most:
                told = f"{one['name']} has MTU {one['mtu']}, others of {network} have {most}"
                advice = "let all interfaces of a network have one MTU (ip link set … mtu)"
                yield Finding("interfaces", "warning", host.name, told, advice)


def _clock(host: Seen) -> Finding:
    ahead, doubt = host.clock
    side = "ahead of" if ahead > 0 else "behind"
    if abs(ahead) - doubt > _CLOCK_SECONDS:
        told = f"{abs(ahead):.1f} s {side} this host's"
        advice = "run an NTP client (chrony) on all hosts: no result depends on it, but logs and "
        advice += "timelines do"
        return Finding("clock", "warning", host.name, told, advice)
    told = f"within {(abs(ahead) + doubt) * 1000:.0f} ms of this host's"
    return Finding("clock", "ok", host.name, told)


def _usable(host: Seen) -> list[dict[str, Any]]:
    """Interfaces that can lead to other hosts; a bridge (docker0) leads to its own containers."""
    return [
        one
        for one in host.facts.get("interfaces", [])
        if one["up"] and one["address"] and not one["loopback"] and not one["bridge"]
    ]


def addresses(host: Seen, chosen: Sequence[str] = ()) -> list[str]:
    """Its addresses: of the chosen interfaces, or of all that can lead to other hosts."""
    return [
        one["address"].partition("/")[0]
        for one in _usable(host)
        if not chosen or one["name"] in chosen
    ]


def _shown(one: dict[str, Any]) -> str:
    speed = f", {one['speed']} Mbit/s" if one["speed"] else ""
    return f"{one['name']} {one['address']} (MTU {one['mtu']}{speed})"


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
