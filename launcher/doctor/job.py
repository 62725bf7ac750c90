"""The small job that `horoaccrun doctor` runs when it has found no error, and what starts it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from horoacc.launcher.doctor.findings import Finding
from horoacc.launcher.doctor.hosts import Seen
from horoacc.launcher.mpirun import Mpirun

_PROGRAM = """
import time, numpy as np, horoacc as hvd
hvd.init()
data = np.full(1 << 18, hvd.rank() + 1, np.float32)
seconds = 1e9
for _ in range(5):
    begun = time.perf_counter()
    total = hvd.allreduce(data, op=hvd.Sum, name="doctor")
    seconds = min(seconds, time.perf_counter() - begun)
wrong = total != hvd.size() * (hvd.size() + 1) / 2
if wrong.any():
    raise SystemExit(f"rank {hvd.rank()} got a wrong sum: {total[wrong][0]}")
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks reduced 1 MiB in {seconds * 1000:.3g} ms")
hvd.shutdown()
"""
# What the real job writes, and how long it may wait, are no matter of this one.
_NOT_FOR_IT = ("HOROACC_TIMELINE", "HOROVOD_TIMELINE", "HOROACC_OUTPUT_FILENAME", "HOROACC_FAULT")
_MOST_RANKS = 2  # of a host: as many as share memory
_MOST_TEXT = 400


def launcher(hosts: Sequence[Seen], tcp: bool, mpirun: Mpirun | None) -> Finding:
    """What starts the ranks of these hosts, with --tcp or without, and whether it can."""
    first = hosts[0]
    others = [host.name for host in hosts if not host.here]
    if mpirun is None and others:
        told = f"no mpirun was found, and {', '.join(others)} is another host"
        advice = "pip install 'horoacc[mpi]' on all hosts, or start torchrun on each of them"
        return Finding("launcher", "error", first.name, told, advice)
    if others and tcp and not first.here:
        told = f"with --tcp the ranks meet on the first host, {first.name}, which is not this one"
        return Finding("launcher", "error", first.name, told, "name this host first in -H")
    if mpirun is None or (tcp and not others):
        return Finding("launcher", "ok", first.name, "horoaccrun itself; ranks meet over TCP")
    way = "TCP" if tcp else "MPI"
    told = f"{mpirun.path} ({mpirun.flavour} {mpirun.version}); ranks meet over {way}"
    return Finding("launcher", "ok", first.name, told)


def run(
    hosts: Sequence[Seen], only_here: bool, environ: Mapping[str, str], seconds: float
) -> Finding:
    """Reduces 1 MiB on at most two ranks of each host, started as the job would be.

    Args:
        hosts: The job's.
        only_here: No host was named: two ranks start here, whatever their number.
        environ: The variables that ranks get.
        seconds: How long that may take.
    """
    few = {host.name: min(_MOST_RANKS, host.ranks) for host in hosts if host.ranks}
    if only_here:
        few = dict.fromkeys(few, _MOST_RANKS)
    line = [sys.executable, "-m", "horoacc.launcher.main", "-np", str(sum(few.values()))]
    if not only_here:
        line += ["-H", ",".join(f"{name}:{count}" for name, count in few.items())]
    own = {name: text for name, text in environ.items() if name not in _NOT_FOR_IT}
    own["HOROACC_START_TIMEOUT"] = str(seconds)
    process = subprocess.Popen(
        [*line, sys.executable, "-c", _PROGRAM],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=own, start_new_session=True,
    )  # fmt: skip
    where = next(iter(few))
    by_hand = f"try by hand: horoaccrun {shlex.join(line[3:])} --verbose hostname"
    try:
        said = process.communicate(timeout=seconds)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            said = process.communicate(timeout=10)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0].decode(errors="replace")
        told = f"{sum(few.values())} ranks did not end in {seconds:g} s{_reason(said)}"
        advice = f"{by_hand}; --network-interfaces chooses a network"
        return Finding("job", "error", where, told, advice)
    found = re.search(r"^\[0\] (.* ranks reduced .*)$", said, re.MULTILINE)
    if found and process.returncode == 0:
        return Finding("job", "ok", where, found[1])
    told = f"{sum(few.values())} ranks ended with code {process.returncode}{_reason(said)}"
    return Finding("job", "error", where, told, f"{by_hand}; docs/faults.md explains errors")


def _reason(said: str) -> str:
    """A typed error if there is one, else the beginning of everything, for that tells the cause."""
    lines = [re.sub(r"^\[\d+\] ", "", line).strip() for line in said.splitlines()]
    lines = [line for line in lines if line.strip("-= ")]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Timeout|PeerLost): ", line)]
    text = errors[-1] if errors else " ".join(lines)
    return f": {text[:_MOST_TEXT]}{'…' if len(text) > _MOST_TEXT else ''}" if text else ""
