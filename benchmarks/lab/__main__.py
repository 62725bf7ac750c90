"""`python -m benchmarks.lab --hosts 2 --rate 1e9 COMMAND…`: runs a command in host h1."""

from __future__ import annotations

import argparse
import sys

from benchmarks.lab.laboratory import Laboratory, LaboratoryError
from benchmarks.lab.network import Network


def main() -> int:
    """Builds a laboratory, runs the command, prints what went over the links."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float, help="bits a second of each link, each way")
    parser.add_argument("--flow-cap", type=float, help="bits a second of one TCP connection")
    parser.add_argument("--rails", type=int, default=1)
    parser.add_argument("--spine-rate", type=float, help="bits a second between two rails")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds from host to host")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("the command to run is missing")
    try:
        network = Network(
            given.hosts, given.rate, given.flow_cap, given.rails, given.spine_rate, given.delay
        )
        with Laboratory(network) as lab:
            code = lab.hosts["h1"].run(given.command, check=False).returncode
            for link, traffic in lab.traffic().items():
                line = f"{link}: {traffic.sent_bytes} bytes sent, {traffic.received_bytes} received"
                print(line, file=sys.stderr)
    except (ValueError, LaboratoryError) as error:
        parser.exit(2, f"{error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
