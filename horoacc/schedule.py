"""Costs and proofs of the collective algorithms: without a job, on any machine.

    python -m horoacc.schedule simulate --algorithm ring,double_tree --hosts 3072 --local 8 \
        --bytes 4K
    python -m horoacc.schedule prove --hosts 4 --local 3

The schedules, the simulator and the prover are the core's (docs/schedules.md); this module only
prints their answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from horoacc import _core
from horoacc.errors import HoroaccError

ALLREDUCES = (
    "ring",
    "double_tree",
    "trees",
    "hierarchical",
    "hierarchical_tree",
    "cpu_reduce",
    "cpu_reduce_tree",
)
CONSTANTS = {
    "local_latency": "s",
    "local_bandwidth": "B/s",
    "memory_bandwidth": "B/s",
    "network_latency": "s",
    "stream_bandwidth": "B/s",
    "nic_bandwidth": "B/s",
    "reduce_bandwidth": "B/s",
    "overhead": "s",
    "slice_bytes": "B",
}
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LARGEST = 1 << 40


def parse_bytes(text: str) -> int:
    """4K, 64M, 1G: binary units, as everywhere in HoroACC."""
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in UNITS else ""
    try:
        value = float(number.removesuffix(unit)) * 1024 ** UNITS[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; say 4K, 64M or 1G") from None
    if not 0 <= value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1T")
    return int(value)


def format_bytes(count: int) -> str:
    """The largest binary unit that leaves at least one."""
    for unit in ("T", "G", "M", "K"):
        size: int = 1024 ** UNITS[unit]
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)


def format_seconds(seconds: float) -> str:
    """Milliseconds from ten on, otherwise microseconds."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 0.01 else f"{seconds * 1e6:.1f} µs"


def hosts_of(arguments: argparse.Namespace) -> list[int]:
    """How many ranks each host has."""
    if arguments.ranks_per_host:
        return [int(part) for part in arguments.ranks_per_host.split(",")]
    return [arguments.local] * arguments.hosts


def fabric_of(arguments: argparse.Namespace) -> _core.Fabric:
    """The usual constants, but for those that were given."""
    fabric = _core.Fabric()
    for name in (*CONSTANTS, "nics"):
        given = getattr(arguments, name)
        if given is not None:
            setattr(fabric, name, given)
    return fabric


def crossover(
    small: str, large: str, hosts: Sequence[int], fabric: _core.Fabric, trees: int
) -> int | None:
    """The least power of two from which `large` is the faster of the two, or None up to 1T."""

    def large_wins(nbytes: int) -> bool:
        first, second = (_core.simulate(n, hosts, nbytes, fabric, trees) for n in (large, small))
        return first.seconds <= second.seconds

    low, high = 0, LARGEST.bit_length() - 1
    if not large_wins(1 << high):
        return None
    while low < high:
        middle = (low + high) // 2
        if large_wins(1 << middle):
            high = middle
        else:
            low = middle + 1
    return 1 << high


def simulate(arguments: argparse.Namespace) -> None:
    """Prints the predicted time of each algorithm."""
    hosts, fabric = hosts_of(arguments), fabric_of(arguments)
    constants = [f"{name} {getattr(fabric, name):g} {unit}" for name, unit in CONSTANTS.items()]
    print(f"{sum(hosts)} ranks on {len(hosts)} hosts, {format_bytes(arguments.bytes)} bytes")
    print("links: " + ", ".join([*constants, f"nics {fabric.nics}"]))
    names = arguments.algorithm
    print(f"{'algorithm':<20} {'time':>12} {'GB/s':>8} {'windows':>8} {'against ' + names[0]:>18}")
    first = None
    for name in names:
        told = _core.simulate(name, hosts, arguments.bytes, fabric, arguments.trees)
        first = first if first is not None else told.seconds
        rate = arguments.bytes / told.seconds / 1e9 if told.seconds > 0 else 0.0
        ratio = f"{first / told.seconds:.4g} x faster" if told.seconds > 0 else ""
        print(
            f"{name:<20} {format_seconds(told.seconds):>12} {rate:>8.3f} {told.windows:>8}"
            f" {ratio:>18}"
        )
    if arguments.crossover:
        small, large = arguments.crossover
        size = crossover(small, large, hosts, fabric, arguments.trees)
        found = "for no size up to 1T" if size is None else f"from {format_bytes(size)} on"
        print(f"{large} is faster than {small} {found}")


def prove(arguments: argparse.Namespace) -> None:
    """Prints the counts of each algorithm's proof; raises the first fault."""
    hosts = hosts_of(arguments)
    print(f"{sum(hosts)} ranks on {len(hosts)} hosts; bytes in parts of the vector")
    print(
        f"{'algorithm':<20} {'steps':>8} {'links':>8} {'rounds':>8} {'a rank sends':>13}"
        f" {'a host sends':>13} {'messages between hosts':>23}"
    )
    for name in arguments.algorithm:
        proof = _core.prove(name, hosts, arguments.root, arguments.trees)
        print(
            f"{name:<20} {proof.steps:>8} {proof.links:>8} {proof.rounds:>8}"
            f" {proof.most_sent:>13.4f} {proof.host_sends:>13.4f} {proof.network_messages:>23}"
        )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    known = _core.algorithms()

    def names(text: str) -> list[str]:
        if text == "all":
            return known
        if text == "allreduce":
            return list(ALLREDUCES)
        asked = text.split(",")
        for name in asked:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no algorithm {name!r}; {', '.join(known)}")
        return asked

    top = argparse.ArgumentParser(prog="python -m horoacc.schedule", description=__doc__)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = top.add_subparsers(dest="command", required=True)
    for command, does in (("simulate", simulate), ("prove", prove)):
        sub = commands.add_parser(command, help=does.__doc__)
        sub.set_defaults(does=does)
        sub.add_argument(
            "--algorithm",
            type=names,
            default=names("allreduce" if does is simulate else "all"),
            help="names with commas between, 'allreduce' or 'all': " + ", ".join(known),
        )
        sub.add_argument("--hosts", type=int, default=2)
        sub.add_argument("--local", type=int, default=2, help="ranks of each host")
        sub.add_argument("--ranks-per-host", help="unequal hosts: 2,1,4")
        sub.add_argument("--trees", type=int, default=4, help="of the algorithm 'trees'")
        if does is prove:
            sub.add_argument("--root", type=int, default=0, help="of broadcast and reduce")
            continue
        sub.add_argument("--bytes", type=parse_bytes, default=parse_bytes("4K"))
        sub.add_argument(
            "--crossover",
            nargs=2,
            metavar=("SMALL", "LARGE"),
            choices=known,
            help="also say from which size the second algorithm is faster than the first",
        )
        links = sub.add_argument_group("links of the cluster (seconds, bytes, bytes a second)")
        for constant in CONSTANTS:
            links.add_argument("--" + constant.replace("_", "-"), type=float)
        links.add_argument("--nics", type=int, help="interfaces of each host")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if a schedule or an argument is wrong."""
    asked = parser().parse_args(arguments)
    try:
        asked.does(asked)
    except (HoroaccError, ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
