"""What an mpirun starts in place of a rank: it has the fork server fork the rank instead.

The rank gets this process's variables and descriptors, among them those that lead to mpirun. This
process ends when the rank does, and fails if the rank did. It imports little and starts fast.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def inherited() -> list[int]:
    """The descriptors that this process was started with."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            os.fstat(number)
        except OSError:
            continue  # the one that listed them
        found.append(number)
    return found


def main(address: str) -> int:
    numbers = inherited()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        told = json.dumps({"variables": dict(os.environ), "numbers": numbers}).encode()
        socket.send_fds(link, [len(told).to_bytes(4, "little")], numbers)
        link.sendall(told)
        # mpirun must see the end of these with the rank's own.
        for number in numbers:
            os.close(number)
        said = link.recv(1)
    return 0 if said == b"0" else 1


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))
