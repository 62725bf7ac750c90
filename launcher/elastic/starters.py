"""How agents come to their hosts: as children of this process, or by an mpirun or srun for each."""

from __future__ import annotations

import dataclasses
import functools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from horoacc.launcher import slurm
from horoacc.launcher.arguments import Options
from horoacc.launcher.children import MpirunProcess, start_piped
from horoacc.launcher.hosts import Host, is_this_host
from horoacc.launcher.mpirun import Mpirun, command_line, is_modern
from horoacc.launcher.processes import die_with_parent, signal_group
from horoacc.launcher.supervise import Supervisor

_AGENT = [sys.executable, "-m", "horoacc.launcher.elastic.agent"]


class MpirunAgents:
    """Starts agents on this host directly, and on others with one mpirun each."""

    def __init__(
        self,
        loop: Supervisor,
        options: Options,
        mpirun: Mpirun | None,
        environ: Callable[[], Mapping[str, str]],
    ) -> None:
        """Starts nothing yet.

        Args:
            loop: Reads what the programs print, and hears of their ends.
            options: The job's.
            mpirun: For other hosts; None: there may be none.
            environ: Gives the variables of agents and workers.
        """
        self._loop = loop
        self._options = options
        self._mpirun = mpirun
        self._environ = environ
        self._programs: dict[str, MpirunProcess] = {}
        self._over: list[MpirunProcess] = []
        loop.timers.append(self._sweep)

    def start_agent(self, host: str, number: int, lost: Callable[[str], None]) -> None:
        """Starts the agent of a host; `lost` is told why, if it ends. OSError: it cannot be."""
        environ = dict(self._environ())
        command = [*_AGENT, str(number), host]
        program = "its agent"
        end = signal.SIGKILL
        if not is_this_host(host):
            if self._mpirun is None:
                raise OSError(0, "there is no mpirun, which starts agents on other hosts")
            options = dataclasses.replace(
                self._options, size=1, hosts=[Host(host, 1)], command=command
            )
            folders = {}
            if self._mpirun.flavour == "openmpi" and is_modern(self._mpirun):
                folders["session"] = self._loop.watchdog.folder(tempfile.gettempdir())
            command = command_line(self._mpirun, options, environ, 1, folders)
            if self._mpirun.flavour == "slurm":
                environ = slurm.for_step(environ)
            program = self._mpirun.path
            end = signal.SIGTERM  # it then ends the agent there
        pid, stdout, stderr = start_piped(
            command, environ, subprocess.DEVNULL, die_with_parent(end)
        )
        process = MpirunProcess(
            self._loop, pid, {"stdout": stdout, "stderr": stderr}, self._loop.printer.plain
        )
        self._programs[host] = process
        self._loop.watchdog.add(pid)
        self._loop.on_child_end(pid, functools.partial(self._ended, host, process, program, lost))

    def stop(self, host: str) -> None:
        """Ends the program that is, or starts, the agent of a host."""
        process = self._programs.pop(host, None)
        if process is not None and process.status is None:
            here = is_this_host(host)  # an agent takes SIGTERM for the wish to leave its host
            signal_group(process.pid, signal.SIGKILL if here else signal.SIGTERM)

    def end(self) -> None:
        """Ends all agents that are left."""
        for process in self._programs.values():
            if process.status is None:
                signal_group(process.pid, signal.SIGTERM)

    def _ended(
        self,
        host: str,
        process: MpirunProcess,
        program: str,
        lost: Callable[[str], None],
        status: int,
    ) -> None:
        process.ended(status)
        self._over.append(process)
        if self._programs.get(host) is process:
            del self._programs[host]
        how = f"code {status}" if status >= 0 else f"signal {-status}"
        lost(f"{program} ended with {how}")

    def _sweep(self, now: float) -> float:
        for process in self._over:
            process.sweep(now)
        self._over = [process for process in self._over if not process.finished]
        return time.monotonic() + 0.1 if self._over else float("inf")
