"""Builds a network of hosts from namespaces, and starts commands in it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab import network as plan
from benchmarks.lab.counters import Traffic, read_counters
from benchmarks.lab.network import Network
from benchmarks.lab.possible import missing

_HERE = Path(__file__).resolve().parent
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")


class LaboratoryError(RuntimeError):
    """The laboratory could not be built; the text says why."""


class Host:
    """One host of a laboratory."""

    def __init__(self, name: str, addresses: list[str], pid: int, environ: dict[str, str]) -> None:
        self.name = name
        self.addresses = addresses
        """Its address on each rail."""
        self.pid = pid
        """The process that holds its namespaces, as this process counts."""
        self._environ = environ

    def command(self, words: Sequence[str], folder: str | None = None) -> list[str]:
        """The command line that runs a command in this host.

        Args:
            words: The command and its arguments.
            folder: Its working directory; None: this process's.
        """
        start = ["sh", "-c", 'cd "$0" && exec "$@"', folder or os.getcwd()]
        enter = ["nsenter", "--target", str(self.pid), *_NAMESPACES, "--"]
        # A command whose entrance is killed must not run on.
        return [*enter, "setpriv", "--pdeathsig", "KILL", *start, *words]

    def popen(self, words: Sequence[str], **keywords: Any) -> subprocess.Popen[Any]:
        """Starts a command here; keywords as for `subprocess.Popen`."""
        own = dict(keywords.pop("env", os.environ)) | self._environ
        folder = keywords.pop("cwd", None)
        return subprocess.Popen(self.command(words, folder), env=own, **keywords)

    def run(self, words: Sequence[str], **keywords: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a command here to its end; keywords as for `subprocess.run`."""
        own = dict(keywords.pop("env", os.environ)) | self._environ
        folder = keywords.pop("cwd", None)
        keywords.setdefault("check", True)
        return subprocess.run(self.command(words, folder), env=own, **keywords)

    def traffic(self) -> dict[str, Traffic]:
        """What went over its interfaces so far, by name (lo, eth0, eth1)."""
        return read_counters(self.pid)


class Laboratory:
    """Hosts h1, h2, … on this machine while the context lasts.

    Nothing of it lies in the machine's own namespaces or file system, and all of it ends with the
    process that made it, however that ends.

    Example:
        >>> with Laboratory(Network(hosts=2, rate=1e9)) as lab:
        ...     lab.hosts["h1"].run(["horoaccrun", "-np", "4", "-H", "h1:2,h2:2", "hostname"])

    Attributes:
        hosts: The hosts by name.
    """

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or Network()
        self.hosts: dict[str, Host] = {}
        self._init: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._fabric = -1

    def __enter__(self) -> Laboratory:
        """Builds it.

        Raises:
            LaboratoryError: This machine cannot hold one, or a command failed.
        """
        if reason := missing(self.network.delay > 0):
            raise LaboratoryError(reason)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process in it and waits until they are gone."""
        # Process 1 takes all others along, the relay too.
        for process in (self._init, self._relay):
            if process is None:
                continue
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()  # for process 1 that is unshare, which takes it along
                process.wait()
        self._init = self._relay = None
        self.hosts = {}

    def traffic(self) -> dict[str, Traffic]:
        """What went over the links so far.

        Returns:
            For each interface of a host, as "h1.eth0", the traffic as the host sees it; for a
            spine, as "spine", what went from rail 0 to rail 1 as sent.
        """
        result = {
            f"{host.name}.{device}": traffic
            for host in self.hosts.values()
            for device, traffic in host.traffic().items()
            if device != "lo"
        }
        if self.network.spine_rate is not None:
            result["spine"] = read_counters(self._fabric)["spine0"]
        return result

    def unplug(self, host: str) -> None:
        """Takes a host's cables out of the switches, as if it had lost its power.

        Args:
            host: Its name. It runs on, and nothing reaches it any more.

        Raises:
            ValueError: With a delay the switch is a relay, which has no cables.
        """
        if self.network.delay:
            raise ValueError("a relay between the hosts has no cables to take out")
        self._turn(host, "down")

    def plug(self, host: str) -> None:
        """Puts the cables back that `unplug` took out."""
        self._turn(host, "up")

    def _turn(self, host: str, way: str) -> None:
        rails = range(self.network.rails)
        self._batch(self._fabric, "ip", [f"link set {host}.{rail} {way}" for rail in rails])

    def _build(self) -> None:
        names = self.network.names
        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        program = [sys.executable, "-I", "-S", str(_HERE / "init.py"), *names]
        self._init = subprocess.Popen(
            [*unshare, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._init.stdin and self._init.stdout
        text = self.network.hosts_file().encode()
        self._init.stdin.write(f"{len(text)}\n".encode() + text)
        self._init.stdin.flush()
        line = self._init.stdout.readline().split()
        if len(line) != len(names):
            raise LaboratoryError("the laboratory's first process ended; its message is above")
        inner = [int(word) for word in line]
        (self._fabric,) = _children(self._init.pid)
        outer = {_inner_pid(pid): pid for pid in _children(self._fabric)}
        held = " ".join(f"{name}={pid}" for name, pid in zip(names, inner, strict=True))
        # With them horoaccrun in one host reaches the others.
        environ = {"HOROACC_LAB": held, "HOROACC_LAUNCH_AGENT": str(_HERE / "enter")}
        for index, (name, pid) in enumerate(zip(names, inner, strict=True)):
            addresses = [self.network.address(index, r) for r in range(self.network.rails)]
            self.hosts[name] = Host(name, addresses, outer[pid], environ)
        if self.network.delay > 0:
            self._start_relay(inner)
        else:
            self._batch(self._fabric, "ip", plan.fabric_links(self.network, inner))
        self._configure_hosts()
        self._shape()

    def _start_relay(self, pids: list[int]) -> None:
        places = [f"{self.network.address(i)}={pid}" for i, pid in enumerate(pids)]
        program = [sys.executable, "-I", "-S", str(_HERE / "relay.py"), str(self.network.delay)]
        self._relay = subprocess.Popen(
            [*_enter(self._fabric), *program, *places], stdout=subprocess.PIPE
        )
        assert self._relay.stdout
        if self._relay.stdout.readline() != b"ready\n":
            raise LaboratoryError("the relay that delays packets ended; its message is above")

    def _configure_hosts(self) -> None:
        for index, host in enumerate(self.hosts.values()):
            for key, value in plan.host_sysctls(self.network).items():
                _run([*_enter(host.pid), "sysctl", "-q", "-w", f"{key}={value}"])
            self._batch(host.pid, "ip", plan.host_links(self.network, index))

    def _shape(self) -> None:
        """Both ends of a link send at its rate at most."""
        rate, cap = self.network.rate, self.network.flow_cap
        fabric: list[str] = []
        for rail in range(self.network.rails):
            for name, host in self.hosts.items():
                if rate is None:
                    continue
                self._batch(host.pid, "tc", plan.shape(f"eth{rail}", rate, cap))
                if not self.network.delay:
                    fabric += plan.shape(f"{name}.{rail}", rate, cap)
        if self.network.spine_rate is not None:
            for end in ("spine0", "spine1"):
                fabric += plan.shape(end, self.network.spine_rate)
        self._batch(self._fabric, "tc", fabric)

    def _batch(self, pid: int, tool: str, lines: list[str]) -> None:
        if lines:
            _run([*_enter(pid), tool, "-batch", "-"], "\n".join(lines) + "\n")


def _enter(pid: int) -> list[str]:
    return ["nsenter", "--target", str(pid), *_NAMESPACES, "--"]


def _run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LaboratoryError(f"{shlex.join(command[-4:])}: {done.stderr.strip()}")


def _children(pid: int) -> list[int]:
    return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _inner_pid(pid: int) -> int:
    """A process's id in its own process namespace."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    raise LaboratoryError(f"the kernel does not tell the namespaces of process {pid}")
