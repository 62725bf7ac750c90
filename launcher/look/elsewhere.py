"""Ranks on other hosts, asked from a host that has none of the job's, such as a login node.

The launcher of the job tells which hosts there are and how it reaches them (`way`). One small
process (relay.py) is started on the first that can be reached, as `horoaccrun doctor` does it, and
asks a rank there.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from horoacc import settings
from horoacc.launcher.arguments import Options
from horoacc.launcher.doctor.reach import RemoteProgram, Unreached, agent_name, command_on
from horoacc.launcher.hosts import is_this_host

__all__ = ["Elsewhere", "way"]

_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")  # by which the relay's Python finds what it needs
_MOST_HOSTS = 3
_START_SECONDS = 10.0  # to connect, and to import what the relay needs


def way(options: Options, environ: Mapping[str, str]) -> dict[str, Any]:
    """What whoever asks the launcher is told of a job; nothing if all ranks are on this host.

    Args:
        options: The job's.
        environ: The variables of its ranks.
    """
    left = options.size
    hosts: list[str] = []
    for host in options.hosts:  # one after the other is filled
        if left <= 0 or len(hosts) == _MOST_HOSTS:
            break
        left -= host.slots
        if not is_this_host(host.name):
            hosts.append(host.name)
    if not hosts:
        return {}
    paths = {name: environ.get(name, "").split(os.pathsep) for name in _PATHS}
    variables = {
        name: os.pathsep.join(os.path.abspath(part) for part in parts if part)
        for name, parts in paths.items()
    }
    return {
        "hosts": hosts,
        "launch_agent": options.text("launch_agent"),
        "mpi_args": options.text("mpi_args"),
        "python": sys.executable,
        "variables": variables | {"HOROACC_LOOK_DIR": str(settings.read(environ)["look_dir"])},
    }


class Elsewhere:
    """The ranks of one job, by a process on a host of theirs."""

    def __init__(self, job: str, told: Mapping[str, Any]) -> None:
        """Starts nothing yet.

        Args:
            job: Its short name.
            told: What `way` gave.
        """
        self._hosts: list[str] = [str(host) for host in told["hosts"]]
        self._agent = str(told["launch_agent"])
        self._mpi_args = str(told["mpi_args"])
        given = [f"{name}={text}" for name, text in told["variables"].items() if text]
        words = ["env", *given, str(told["python"]), "-m", "horoacc.launcher.look.relay", job]
        self._line = f"exec {shlex.join(words)}"
        self._program: RemoteProgram | None = None
        self.host = ""
        """Where the process is."""

    def ask(self, question: str, seconds: float) -> tuple[bytes, dict[int, str]]:
        """Asks.

        Args:
            question: As ranks take it.
            seconds: How long an answer may take.

        Returns:
            What the ranks say, and why others say nothing.

        Raises:
            Unreached: No host can be reached, or the one that was does not answer any more.
        """
        if self._program is None:
            told = self._reach(question, seconds + _START_SECONDS)
        else:
            try:
                told = self._program.ask("look", seconds, question=question)
            except Unreached as error:
                self.close()
                raise Unreached(f"{self.host} is lost: {error}", error.advice) from None
        silent = {int(rank): str(why) for rank, why in told["silent"].items()}
        return str(told["answers"]).encode("latin-1"), silent

    def close(self) -> None:
        """Ends the process."""
        if self._program is not None:
            self._program.close()
            self._program = None

    def _reach(self, question: str, seconds: float) -> Any:
        why: Unreached | None = None  # of the first
        for host in self._hosts:
            command = command_on(host, self._agent, self._mpi_args, seconds / 2, self._line)
            try:
                self._program = RemoteProgram(host, command)
                told = self._program.ask("look", seconds, question=question)
            except Unreached as error:
                self.close()
                text = f"{host} cannot be reached by {agent_name(self._agent)}: {error}"
                why = why or Unreached(text, error.advice)
                continue
            self.host = host
            return told
        raise why or Unreached("its launcher names no host", "")
