"""The hosts of `horoaccrun doctor`, and its probe on each."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horoacc.launcher.doctor.reach import NO_PYTHON, RemoteProgram, Unreached, command_on
from horoacc.launcher.hosts import is_this_host

_PROBE = Path(__file__).resolve().parent / "probe.py"
_READ = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_OLDEST = "import sys; sys.exit(sys.version_info < (3, 7))"
# The shell of the other host: the ranks' interpreter, else any that can run the probe.
_START = (
    'for python in {python} python3; do "$python" -c {oldest} 2>/dev/null'
    ' && exec "$python" -I -S -c {read}; done; echo {none}'
)
_CLOCK_READINGS = 7


@dataclass
class Seen:
    """A host and what is known of it."""

    name: str
    ranks: int
    here: bool
    facts: dict[str, Any] = field(default_factory=dict)
    rank: dict[str, Any] = field(default_factory=dict)
    """What the ranks' interpreter finds there."""
    met: dict[str, Any] = field(default_factory=dict)
    """Names and connections, by the other host's name."""
    clock: tuple[float, float] = (0.0, 0.0)
    """Seconds that its clock is ahead of this host's, and how far that may be wrong."""
    ports: list[int] = field(default_factory=list)
    started: float = 0.0
    """Seconds until it first answered."""
    unreached: Unreached | None = None


def which_are_here(names: Sequence[str], seconds: float) -> set[str]:
    """The names of this machine; one whose resolver does not answer in time is another's."""
    found: set[str] = set()

    def ask(name: str) -> None:
        if is_this_host(name):
            found.add(name)

    askers = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    deadline = time.monotonic() + seconds
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(max(0.0, deadline - time.monotonic()))
    return set(found)


def start_probe(
    host: Seen, agent: str, mpi_args: str, order: Mapping[str, Any], seconds: float
) -> RemoteProgram:
    """Starts the probe on a host.

    Args:
        host: Which.
        agent: The launch agent; "": ssh.
        mpi_args: Flags of mpirun.
        order: The first line that the probe reads: `token` and `life`.
        seconds: How long ssh may take to connect.

    Raises:
        Unreached: The command cannot be started.
    """
    command = [sys.executable, "-I", "-S", "-c", _READ]
    if not host.here:
        start = _START.format(
            python=shlex.quote(sys.executable),
            oldest=shlex.quote(_OLDEST),
            read=shlex.quote(_READ),
            none=shlex.quote(NO_PYTHON),
        )
        command = command_on(host.name, agent, mpi_args, seconds, start)
    source, own = _PROBE.read_bytes(), json.dumps({**order, "host": host.name})
    first = f"{len(source)}\n".encode() + source + own.encode() + b"\n"
    return RemoteProgram(host.name, command, first)


def on_all(hosts: Sequence[Seen], work: Callable[[Seen], None]) -> None:
    """Calls `work` for every host that was reached, at once; a host for which it raises Unreached
    counts as not reached from then on.
    """

    def guarded(host: Seen) -> None:
        try:
            work(host)
        except Unreached as error:
            host.unreached = error

    reached = [host for host in hosts if host.unreached is None]
    with ThreadPoolExecutor(max_workers=max(1, len(reached))) as threads:
        for _ in threads.map(guarded, reached):
            pass


def read_clock(probe: RemoteProgram, seconds: float) -> tuple[float, float]:
    """How many seconds a host's clock is ahead of this one, and how far that may be wrong."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.time()
        there = float(probe.ask("clock", seconds))
        after = time.time()
        readings.append(((after - before) / 2, there - (before + after) / 2))
    doubt, ahead = min(readings)
    return ahead, doubt
