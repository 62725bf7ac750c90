"""Starts the ranks through an mpirun: Open MPI's or MPICH's (Hydra)."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Mapping

from horoacc.launcher.arguments import Options
from horoacc.launcher.find_mpirun import Mpirun, MpirunError, is_modern
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.mpirun_command import command_line, is_local
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.shim_links import ShimDoor
from horoacc.launcher.supervise import Supervisor

# What mpirun puts in front of lines that come from ranks on other hosts.
_TAG = re.compile(rb"^\[(?:\d+,)?(\d+)\](?:<(stdout|stderr)>:?)? ?(.*)$", re.DOTALL)


class MpirunStarter:
    """Starts mpirun and lets the shims of the ranks report to the supervisor."""

    def __init__(
        self, supervisor: Supervisor, mpirun: Mpirun, options: Options, cores: int
    ) -> None:
        self._supervisor = supervisor
        self._mpirun = mpirun
        self._options = options
        self._cores = cores
        self._door = ShimDoor(supervisor, secrets.token_hex(32), options.size)
        self._door.meeting = _meeting_place(options) if options.on("tcp") else None

    def start(self, environ: Mapping[str, str]) -> None:
        """Starts the job.

        Args:
            environ: The variables that the ranks get.

        Raises:
            OSError: mpirun cannot be started.
        """
        own = dict(environ)
        own["HOROACC_SECRET"] = self._door.secret
        own["HOROACC_OUTPUT_SOCKET"] = self._door.name
        if self._door.meeting is not None:
            host, port = self._door.meeting.getsockname()[:2]
            own["HOROACC_RENDEZVOUS"] = f"{host}:{port}"
        self._door.open()
        stdout, stdout_end = os.pipe()
        stderr, stderr_end = os.pipe()
        line = command_line(self._mpirun, self._options, own, self._cores, self._folders())
        if self._options.on("verbose"):
            self._supervisor.printer.say(shlex.join(line))
        child = subprocess.Popen(
            line,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=stdout_end,
            stderr=stderr_end,
            start_new_session=True,
            # Asked to end, mpirun ends its ranks everywhere and removes its files.
            preexec_fn=die_with_parent(15),
        )
        child.returncode = 0  # the supervisor waits for it, not this object
        os.close(stdout_end)
        os.close(stderr_end)
        self._supervisor.add_engine(child.pid, stdout, stderr, self._line)

    def _folders(self) -> dict[str, str]:
        """Folders of the job's own for the files that Open MPI leaves behind when it is killed.

        Before version 5, and with MPICH, such files cannot be sent elsewhere, so they are sought.
        """
        if is_local(self._options) and (
            self._mpirun.flavour == "mpich" or not is_modern(self._mpirun)
        ):
            self._supervisor.watchdog.seek_segments()
        if self._mpirun.flavour != "openmpi" or not is_modern(self._mpirun):
            return {}
        folders = {"session": self._supervisor.watchdog.folder(tempfile.gettempdir())}
        if is_local(self._options) and os.access("/dev/shm", os.W_OK):
            folders["shared"] = self._supervisor.watchdog.folder("/dev/shm")
        return folders

    def _line(self, stream: str, text: bytes) -> None:
        """Takes a line of mpirun's: a remote rank's, or a message of its own."""
        if match := _TAG.match(text):
            rank = int(match[1])
            name = match[2].decode() if match[2] else stream
            self._supervisor.remote_line(rank, name, match[3])
        elif self._supervisor.first_failed is None or self._options.on("verbose"):
            # After a failure mpirun says at length what this launcher says better.
            self._supervisor.printer.plain(stream, text)


def _meeting_place(options: Options) -> socket.socket:
    """A listening socket where rank 0, which is on this host, and the others meet.

    Raises:
        MpirunError: Rank 0 will be elsewhere, or another host is not known by its name.
    """
    if not is_this_host(options.hosts[0].name):
        raise MpirunError(
            f"with --tcp the ranks meet on the first host, which is {options.hosts[0].name}: name "
            "this one first, or leave --tcp out"
        )
    stranger = next(host.name for host in options.hosts if not is_this_host(host.name))
    try:
        family, _, _, _, there = socket.getaddrinfo(stranger, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing; the kernel says which way it would go
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise MpirunError(f"there is no way to host {stranger}: {error.strerror}") from None
    return socket.create_server((own, 0), family=family, backlog=max(128, options.size))
