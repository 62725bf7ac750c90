"""Ranks on other hosts, asked from a host that has none of the job's, such as a login node.

The launcher of the job tells which hosts there are and how it reaches them (`how_reached`). One
small process (relay.py) is started on the first that can be reached, as `horoaccrun doctor` does
it, and asks a rank there. That launcher is asked only if it is a process of this user in this
one's namespaces (asking.py), for what it tells is run.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

from horoacc import settings
from horoacc.launcher.arguments import Options
from horoacc.launcher.doctor.reach import RemoteProgram, Unreached, agent_name, command_on
from horoacc.launcher.hosts import is_this_host

__all__ = ["RemoteRanks", "how_reached"]

_PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")  # by which the relay's Python finds what it needs
_MOST_HOSTS = 3
_START_SECONDS = 15.0  # to connect, and to import what the relay needs, for all hosts together
_CONNECT_SECONDS = 4.0
# By which mpirun is told how to reach hosts, without --launch-agent.
_AGENTS = (
    "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_agent",
    "HYDRA_LAUNCHER_EXEC",
)  # fmt: skip


def how_reached(options: Options, environ: Mapping[str, str]) -> dict[str, Any]:
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
    # Whoever asks is in another folder, maybe.
    if folder := str(settings.read(environ)["look_dir"]):
        folder = os.path.abspath(folder)
    given = next(filter(None, map(environ.get, _AGENTS)), "").partition(":")[0]  # "ssh : rsh"
    agent = options.text("launch_agent") or given
    with contextlib.suppress(ValueError):  # of one that is no command line
        words = shlex.split(agent)
        if words and (program := shutil.which(words[0])):
            agent = shlex.join([os.path.abspath(program), *words[1:]])
    return {
        "hosts": hosts,
        "launch_agent": agent,
        "mpi_args": options.text("mpi_args"),
        "python": sys.executable,
        "variables": variables | {"HOROACC_LOOK_DIR": folder},
    }


class RemoteRanks:
    """The ranks of one job, by a process on a host of theirs."""

    def __init__(self, job: str, told: Mapping[str, Any]) -> None:
        """Starts nothing yet.

        Args:
            job: Its short name.
            told: What `how_reached` gave.
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
        self._tried = False

    def ask(self, question: str, seconds: float) -> tuple[bytes, dict[int, str]]:
        """Asks.

        Args:
            question: As ranks take it.
            seconds: How long an answer may take.

        Returns:
            What the ranks say, and why others say nothing.

        Raises:
            Unreached: No host can be reached, or the one that was does not answer any more, and
                neither does another.
        """
        told: Any = None
        if self._program is not None:
            try:
                told = self._program.ask("look", seconds, question=question)
            except Unreached:
                self.close()
                self._hosts.remove(self.host)
                self._hosts.append(self.host)  # others come first
        if self._program is None:
            told = self._reach(question, seconds + _START_SECONDS)
        silent = {int(rank): str(why) for rank, why in told["silent"].items()}
        return str(told["answers"]).encode("latin-1"), silent

    def close(self) -> None:
        """Ends the process."""
        if self._program is not None:
            self._program.close()
            self._program = None

    def _reach(self, question: str, seconds: float) -> Any:
        why: Unreached | None = None  # of the first
        until = time.monotonic() + seconds
        for host in self._hosts:
            left = until - time.monotonic()
            limit = left if host == self._hosts[-1] else left / 2
            wait = min(_CONNECT_SECONDS, limit)
            if not self._tried and sys.stderr.isatty():
                print(f"asking {host} by {agent_name(self._agent)} ...", file=sys.stderr)
            try:
                command = command_on(host, self._agent, self._mpi_args, wait, self._line)
                self._program = RemoteProgram(host, command)
                told = self._program.ask("look", round(limit, 1), question=question)
            except Unreached as error:
                self.close()
                text = f"{host} cannot be reached by {agent_name(self._agent)}: {error}"
                why = why or Unreached(text, error.advice)
                continue
            self.host, self._tried = host, True
            return told
        self._tried = True
        raise why or Unreached("its launcher names no host", "")
