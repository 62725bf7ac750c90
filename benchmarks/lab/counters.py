"""Bytes on the links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traffic:
    """What went over one end of a link, headers of Ethernet and above included."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int

    def __sub__(self, before: Traffic) -> Traffic:
        """What went over since `before`."""
        return Traffic(
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            self.sent_packets - before.sent_packets,
            self.received_packets - before.received_packets,
        )


def read_counters(pid: int) -> dict[str, Traffic]:
    """Reads the counters of the network namespace that a process is in.

    A packet that the kernel cuts up later (segmentation offload) counts as one, with one header.

    Args:
        pid: The process.

    Returns:
        Traffic by the interface's name.
    """
    result = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = [int(number) for number in numbers.split()]
        result[name.strip()] = Traffic(fields[8], fields[0], fields[9], fields[1])
    return result
