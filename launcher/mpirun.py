"""Starts the ranks through an mpirun: Open MPI's or MPICH's (Hydra)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping

from horoacc.launcher.arguments import Options
from horoacc.launcher.find_mpirun import Mpirun, MpirunError, is_modern
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.local import stdin_for
from horoacc.launcher.mpirun_command import command_line, is_local
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.shim import LISTENER, STDIN
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
        # An abstract name leaves no file behind, whatever happens to this process.
        self._name = f"horoaccrun-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self._name}")
        self._listener.listen(max(128, options.size))
        self._listener.setblocking(False)
        self._meeting = _meeting_place(options) if options.on("tcp") else None

    def start(self, environ: Mapping[str, str]) -> None:
        """Starts the job.

        Args:
            environ: The variables that the ranks get.

        Raises:
            OSError: mpirun cannot be started.
        """
        own = dict(environ)
        own["HOROACC_SECRET"] = secrets.token_hex(32)
        own["HOROACC_OUTPUT_SOCKET"] = self._name
        if self._meeting is not None:
            host, port = self._meeting.getsockname()[:2]
            own["HOROACC_RENDEZVOUS"] = f"{host}:{port}"
        self._supervisor.watch(self._listener.fileno(), self._accept)
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

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            return
        _, uid, _ = struct.unpack(
            "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        if uid != os.geteuid():
            link.close()
            return
        link.setblocking(False)
        self._supervisor.watch(
            link.fileno(), _Shim(self._supervisor, link, self._pass_meeting).ready
        )

    def _pass_meeting(self) -> socket.socket | None:
        """The socket where the ranks meet; it becomes rank 0's alone."""
        meeting, self._meeting = self._meeting, None
        return meeting

    def _line(self, stream: str, text: bytes) -> None:
        """Takes a line of mpirun's: a remote rank's, or a message of its own."""
        if match := _TAG.match(text):
            rank = int(match[1])
            name = match[2].decode() if match[2] else stream
            self._supervisor.remote_line(rank, name, match[3])
        elif self._supervisor.first_failed is None or self._options.on("verbose"):
            # After a failure mpirun says at length what this launcher says better.
            self._supervisor.printer.plain(stream, text)


class _Shim:
    """One rank's shim, as seen from here."""

    def __init__(
        self,
        supervisor: Supervisor,
        link: socket.socket,
        pass_meeting: Callable[[], socket.socket | None],
    ) -> None:
        self._supervisor = supervisor
        self._link = link
        self._pass_meeting = pass_meeting
        self._rank: int | None = None
        self._rest = b""

    def ready(self) -> None:
        """Reads who the rank is, with its pipes, and later how it ended."""
        try:
            data, fds, _, _ = socket.recv_fds(self._link, 4096, 2)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "rank" in message and len(fds) == 2:
                self._rank = int(message["rank"])
                self._supervisor.add_rank(self._rank, int(message["pid"]), fds[0], fds[1])
                self._let_go(self._rank)
            elif "status" in message and self._rank is not None:
                self._supervisor.rank_ended(self._rank, int(message["status"]))
        if not data:
            self._supervisor.unwatch(self._link.fileno())
            self._link.close()
            if self._rank is not None:
                # Without a report the shim was killed, and its program with it.
                self._supervisor.rank_ended(self._rank, -9)

    def _let_go(self, rank: int) -> None:
        """Lets the program start, with the descriptors that only this one gets."""
        passed = [0] if stdin_for(rank) is None else []
        kinds = STDIN if passed else 0
        meeting = self._pass_meeting() if rank == 0 else None
        if meeting is not None:
            passed.append(meeting.fileno())
            kinds |= LISTENER
        with contextlib.suppress(BrokenPipeError):  # the shim is gone; that comes next
            socket.send_fds(self._link, [bytes([kinds])], passed)
        if meeting is not None:
            meeting.close()


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
