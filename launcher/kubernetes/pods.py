"""A pod of an Indexed Job, as `horoaccrun k8s manifest` describes it, and its share of ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from horoacc.launcher.hosts import address_of

ALIVE = "/dev/shm/horoacc.alive"
"""A file that horoaccrun renews, so that the pod's probes see that its loop runs."""
_PERIOD = 10.0


class PodError(RuntimeError):
    """The variables of a pod contradict the job; the text says how."""


@dataclass(frozen=True)
class Share:
    """The ranks of one pod."""

    first: int
    count: int
    size: int
    """Of the whole job."""
    rendezvous: str
    secret: str


@dataclass(frozen=True)
class Pod:
    """One pod."""

    index: int
    pods: int
    rendezvous: str
    """host:port, on the pod with index 0."""
    secret: str

    def share(self, size: int) -> Share:
        """This pod's part of `size` ranks; PodError if pods would have different numbers."""
        if size % self.pods or self.index >= self.pods:
            raise PodError(
                f"-np asks for {size} ranks on {self.pods} pods (HOROACC_PODS), of which this is "
                f"number {self.index}: each must have the same number of ranks"
            )
        count = size // self.pods
        return Share(self.index * count, count, size, self.rendezvous, self.secret)

    def own_address(self) -> tuple[str, socket.AddressFamily]:
        """This pod's address, by which the others reach it, and its family; PodError: none."""
        name = socket.gethostname()
        try:
            return address_of(name)
        except OSError as error:
            raise PodError(f"this pod's name {name} has no address: {error}") from None


def pod_of(environ: Mapping[str, str]) -> Pod | None:
    """The pod that this process is in, if it is one of a manifest's.

    Raises:
        PodError: A variable is missing or wrong.
    """
    index, pods = environ.get("JOB_COMPLETION_INDEX"), environ.get("HOROACC_PODS")
    if index is None or pods is None:
        return None
    if not (index.isdecimal() and pods.isdecimal() and int(pods)):
        raise PodError(f"JOB_COMPLETION_INDEX is '{index}' and HOROACC_PODS '{pods}', not numbers")
    meeting, secret = environ.get("HOROACC_RENDEZVOUS", ""), environ.get("HOROACC_SECRET", "")
    if not secret or not meeting.rpartition(":")[2].isdecimal():
        raise PodError(
            "HOROACC_PODS is set, but HOROACC_RENDEZVOUS (host:port) or HOROACC_SECRET is not: "
            "`horoaccrun k8s manifest` sets all of them"
        )
    return Pod(int(index), int(pods), meeting, secret)


def renewal(path: str = ALIVE) -> Callable[[float], float]:
    """A timer of the supervisor's loop, which renews the file of the probes."""
    due = 0.0

    def renew(now: float) -> float:
        nonlocal due
        if now >= due:
            due = time.monotonic() + _PERIOD
            Path(path).touch()
        return due

    return renew
