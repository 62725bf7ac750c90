"""Which hosts an elastic job may use: a fixed list, or what a script prints again and again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from horoacc.launcher.children import MpirunProcess, start_piped
from horoacc.launcher.hosts import Host, HostsError, parse_host_lines
from horoacc.launcher.processes import die_with_parent, signal_group
from horoacc.launcher.supervise import Supervisor

PERIOD = 1.0
"""Seconds between two runs of a script."""
_SECONDS = 30.0


class FixedHosts:
    """Hosts that are given once."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)

    def start(self, found: Callable[[list[Host]], None]) -> None:
        """Gives the hosts."""
        found(self._hosts)

    def close(self) -> None:
        """Does nothing."""


class ScriptDiscovery:
    """Runs a script each second. It prints a host a line: `name:slots`, or `name`.

    A run that fails, prints something else or takes too long changes nothing, and is told once.
    """

    def __init__(self, loop: Supervisor, script: str, slots: int) -> None:
        """Runs nothing yet.

        Args:
            loop: Reads what the script prints, and hears of its end.
            script: Its path, or a command with arguments for the shell.
            slots: Of a host without a number.
        """
        self._loop = loop
        self._script = script
        self._slots = slots
        self._found: Callable[[list[Host]], None] = lambda _: None
        self._run: MpirunProcess | None = None
        self._lines: list[bytes] = []
        self._errors: list[bytes] = []
        self._next = 0.0
        self._told = ""

    def start(self, found: Callable[[list[Host]], None]) -> None:
        """Runs the script again and again; `found` gets the hosts of each good run."""
        self._found = found
        self._loop.timers.append(self._on_time)

    def close(self) -> None:
        """Ends a run that is under way."""
        if self._run is not None and self._run.status is None:
            signal_group(self._run.pid, signal.SIGKILL)
        with contextlib.suppress(ValueError):
            self._loop.timers.remove(self._on_time)

    def _on_time(self, now: float) -> float:
        if self._run is not None and self._run.finished:
            self._take(self._run.status or 0)
            self._run = None
            self._next = now + PERIOD
        elif self._run is not None:
            self._run.sweep(now)
            if now >= self._next and self._run.status is None:
                signal_group(self._run.pid, signal.SIGKILL)
            return now + 0.05 if self._run.status is not None else max(self._next, now + 0.05)
        if self._run is None and now >= self._next:
            self._begin(now)
        return self._next

    def _begin(self, now: float) -> None:
        self._lines, self._errors = [], []
        self._next = now + PERIOD
        try:
            pid, stdout, stderr = start_piped(
                ["/bin/sh", "-c", self._script], os.environ, subprocess.DEVNULL, die_with_parent()
            )
        except OSError as error:
            self._warn(f"cannot be run: {error.strerror}")
            return
        self._next = now + _SECONDS
        self._run = MpirunProcess(
            self._loop, pid, {"stdout": stdout, "stderr": stderr},
            lambda name, text: (self._lines if name == "stdout" else self._errors).append(text),
        )  # fmt: skip
        self._loop.on_child_end(pid, self._run.ended)

    def _take(self, status: int) -> None:
        if status != 0:
            how = f"ended with code {status}" if status > 0 else f"was killed by signal {-status}"
            said = b" ".join(self._errors[-3:]).decode(errors="replace")
            self._warn(how + (f": {said}" if said else ""))
            return
        try:
            text = b"\n".join(self._lines).decode(errors="replace")
            hosts = parse_host_lines(text, self._slots)
        except HostsError as error:
            self._warn(f"printed {error}")
            return
        self._told = ""
        self._found(hosts)

    def _warn(self, how: str) -> None:
        if how != self._told:
            self._told = how
            self._loop.printer.say(
                f"the discovery script {self._script} {how}; the hosts stay as they were"
            )
