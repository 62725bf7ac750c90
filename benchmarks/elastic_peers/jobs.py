"""Jobs of the systems, each at its best settings, whose ranks can be killed one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.systems import ROOT, Unavailable, environ

RANKS = 4
LEAST = 3
FOLDER = Path(__file__).parent
REQUIREMENTS = FOLDER / "requirements.txt"
PEER = ROOT / "bench" / "torchft"
"""The environment that has torchft."""
TORCHFT: dict[str, Any] = {
    "lighthouse": {
        "min_replicas": LEAST, "join_timeout_ms": 50, "quorum_tick_ms": 10,
        "heartbeat_timeout_ms": 1000,
    },
    "manager": {"min_replica_size": LEAST, "init_sync": False},
    "seconds": {
        "collective": 5, "timeout": 10, "quorum_timeout": 30, "connect_timeout": 10,
        "heartbeat_interval": 0.05,
    },
}  # fmt: skip
_VARIABLES = {
    "GLOO_SOCKET_IFNAME": "lo",
    "RUST_LOG": "warn",
    # Else torchrun's ranks meet in a store that has the addresses of those before them.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
_SECONDS = 120.0
_HURRIED = 500
_TAIL = 200


@dataclass(frozen=True)
class Step:
    """A line of a rank's log; see `Task.log`."""

    pid: int
    epoch: int
    batch: int
    rank: int
    size: int
    time: float
    begun: int
    loss: float


@dataclass(frozen=True)
class Kill:
    """A kill, the epoch that it ended, and who was there."""

    time: float
    epoch: int
    victim: int
    survivors: frozenset[int]


class Job:
    """A job under one launcher, which sees to the death of its ranks."""

    def __init__(self, folder: Path, command: list[str], spares: int = 0) -> None:
        self.folder = folder
        self.kills: list[Kill] = []
        self.hurried = 0.0, 0.0
        """From when to when there were no pauses."""
        self._spares = spares
        self._errors = open(folder / "errors", "ab")  # noqa: SIM115
        self._launcher = self._start(command)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=environ() | _VARIABLES, stdout=self._errors, stderr=self._errors
        )

    def begin(self) -> None:
        """Starts what the launcher does not."""

    def end(self) -> None:
        self._launcher.send_signal(signal.SIGTERM)
        self._launcher.wait(_SECONDS)
        self._errors.close()

    def _tend(self) -> None:
        """Does what belongs to a supervisor."""
        if self._launcher.poll() is not None:
            raise RuntimeError(
                f"the job ended with code {self._launcher.returncode}: {self.told()}"
            )

    def _strike(self, pid: int) -> float:
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def told(self) -> str:
        """The last that the job said."""
        return (self.folder / "errors").read_text(errors="replace")[-_TAIL:]

    def await_full(self) -> tuple[int, list[int]]:
        """Waits until all ranks do steps, and the spares wait: the epoch, and the ranks."""
        until = time.monotonic() + _SECONDS
        earlier = self.kills[-1].epoch if self.kills else -1
        while time.monotonic() < until:
            last = {
                step.pid: step for path in self.folder.glob("steps.*") if (step := _last_step(path))
            }
            epoch = max((step.epoch for step in last.values()), default=0)
            there = sorted(
                (step.rank, pid) for pid, step in last.items()
                if step.epoch == epoch and step.size == RANKS and step.rank >= 0
            )  # fmt: skip
            ready = sum(_alive(int(path.suffix[1:])) for path in self.folder.glob("ready.*"))
            if len(there) == RANKS and epoch > earlier and ready >= RANKS + self._spares:
                return epoch, [pid for _, pid in there]
            self._tend()
            time.sleep(0.02)
        raise RuntimeError(f"in {_SECONDS:g} s the ranks did not come together: {self.told()}")

    def hurry(self) -> None:
        """Lets the ranks do some steps without pauses, when all is there."""
        from benchmarks.elastic_peers.task import HURRY

        self.await_full()
        (self.folder / HURRY).touch()
        began, first, until = time.monotonic(), self._farthest(), time.monotonic() + _SECONDS
        while self._farthest() < first + _HURRIED:
            self._tend()
            if time.monotonic() > until:
                raise RuntimeError(f"no {_HURRIED} steps in {_SECONDS:g} s: {self.told()}")
            time.sleep(0.05)
        self.hurried = began, time.monotonic()
        (self.folder / HURRY).unlink()

    def _farthest(self) -> int:
        last = (_last_step(path) for path in self.folder.glob("steps.*"))
        return max((step.batch for step in last if step), default=0)

    def kill(self, delay: float, place: int) -> None:
        """Kills the rank at a place in the order of ranks, some time after all are there."""
        self.await_full()
        until = time.monotonic() + delay
        while time.monotonic() < until:
            self._tend()
            time.sleep(0.01)
        epoch, pids = self.await_full()  # it may have changed by itself
        when = self._strike(pids[place])
        self.kills.append(Kill(when, epoch, pids[place], frozenset(pids) - {pids[place]}))

    def steps(self) -> list[Step]:
        """What the ranks logged, in the order of time."""
        found = []
        for path in self.folder.glob("steps.*"):
            found += [_step(path, line) for line in path.read_text().splitlines()]
        return sorted(found, key=lambda step: step.time)


class TorchftJob(Job):
    """Replica groups of one rank, each a process that is started again as soon as it has ended."""

    def __init__(self, folder: Path) -> None:
        script = str(FOLDER / "torchft_rank.py")
        self._command = [str(peer_python()), script, str(folder), json.dumps(TORCHFT)]
        self._replicas: list[subprocess.Popen[bytes]] = []
        self.own_ends = 0
        super().__init__(folder, self._command)

    def begin(self) -> None:
        """Starts the replica groups as soon as the lighthouse tells its address."""
        until = time.monotonic() + _SECONDS
        while not (self.folder / "lighthouse").exists():
            self._tend()
            if time.monotonic() > until:
                raise RuntimeError(f"no lighthouse: {self.told()}")
            time.sleep(0.02)
        self._address = (self.folder / "lighthouse").read_text()
        self._replicas += [self._replica(number) for number in range(RANKS)]

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        return self._start([*self._command, str(number), self._address])

    def _tend(self) -> None:
        super()._tend()
        for number, replica in enumerate(self._replicas):
            if replica.poll() is not None:
                self.own_ends += 1
                self._replicas[number] = self._replica(number)

    def _strike(self, pid: int) -> float:
        when = super()._strike(pid)
        number = [replica.pid for replica in self._replicas].index(pid)
        self._replicas[number].wait()
        self._replicas[number] = self._replica(number)
        return when

    def end(self) -> None:
        for replica in self._replicas:
            replica.kill()
            replica.wait()
        super().end()


@dataclass(frozen=True)
class System:
    """How a row of the comparison is started."""

    name: str
    flags: str
    version: str
    start: Callable[[Path], Job]
    plain: str = ""
    """The system without what survives deaths; empty of such a one."""


def horoacc(name: str, *flags: str, spares: int = 0) -> System:
    """HoroACC, elastic if there are flags."""
    given = [*flags, "--failures-per-host", "100000"] if flags else ["--tcp"]
    given = ["-np", str(RANKS), *given]
    command = [sys.executable, "-m", "horoacc.launcher.main", *given, sys.executable]
    script, kind = str(FOLDER / "horoacc_rank.py"), "elastic" if flags else "plain"
    return System(
        name, " ".join(["horoaccrun", *given]), metadata.version("horoacc"),
        lambda folder: Job(folder, [*command, script, str(folder), kind], spares),
        "HoroACC, plain" if flags else "",
    )  # fmt: skip


def torchrun(name: str, every: int) -> System:
    """DDP over Gloo; restarted if there are checkpoints."""
    flags = ["--standalone", "--nproc-per-node", str(RANKS)]
    flags += ["--max-restarts", "100000", "--monitor-interval", "0.01"] if every else []
    command = [sys.executable, "-m", "torch.distributed.run", *flags, str(FOLDER / "ddp_rank.py")]
    said = f", a checkpoint every {every} steps" if every else ""
    return System(
        name, " ".join(["torchrun", *flags]) + said, f"torch {metadata.version('torch')}",
        lambda folder: Job(folder, [*command, str(folder), str(every)]),
        "DDP over Gloo, plain" if every else "",
    )  # fmt: skip


def torchft() -> System:
    """DDP of torchft over Gloo, each rank a replica group.

    Raises:
        Unavailable: torchft is not installed.
    """
    python = peer_python()
    ask = "from importlib.metadata import version as of; print(of('torchft'), of('torch'))"
    found = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    if found.returncode:
        raise Unavailable(f"{python} has no torchft: {found.stderr.strip()[-_TAIL:]}")
    own, torch = found.stdout.split()
    parts = (f"{name}={value}" for part in TORCHFT.values() for name, value in part.items())
    return System(
        "torchft", " ".join(parts), f"{own}, torch {torch}", TorchftJob, "DDP over Gloo, plain"
    )


def peer_python() -> Path:
    """The Python of the environment that has torchft.

    Raises:
        Unavailable: There is none.
    """
    python = PEER / "bin" / "python"
    if not python.exists():
        place, file = PEER.relative_to(ROOT), REQUIREMENTS.relative_to(ROOT)
        raise Unavailable(
            f"torchft is not installed: python -m venv {place} && {place}/bin/pip install -r {file}"
        )
    return python


def _step(path: Path, line: str) -> Step:
    *numbers, clock, begun, loss = line.split()
    epoch, batch, rank, size = map(int, numbers)
    pid = int(path.suffix[1:])
    return Step(pid, epoch, batch, rank, size, float(clock), int(begun), float(loss))


def _last_step(path: Path) -> Step | None:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        lines = file.read().split(b"\n")
    whole = lines[1:-1] if len(lines) > 2 else lines[:-1]
    return _step(path, whole[-1].decode()) if whole else None


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
