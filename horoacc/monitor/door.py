"""Where processes of a running job are to be found: Unix sockets in a folder of the user's alone.

The core answers at a rank's (csrc/runtime/trace/reading_server.h), the loops of the launcher and of
agents at theirs (launcher/look/look_server.py); `horoaccrun top` and `horoaccrun explain` ask. A
file is named JOB.OWNER.PROCESS, and its owner is a rank, or `launcher`, or `agent`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from horoacc import process, settings
from horoacc.start import tell_once

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_PART = 1 << 20
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of an accept() for which whoever asks has to wait."""
SHORT_SECONDS = 0.1
LAUNCHER, AGENT = "launcher", "agent"


class Door(NamedTuple):
    """The socket of one process, as its name tells."""

    path: Path
    job: str
    owner: str
    """A rank's number, LAUNCHER or AGENT."""
    pid: int

    @property
    def rank(self) -> int:
        """Whose it is; -1: no rank's."""
        return int(self.owner) if self.owner.isdigit() else -1


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Gives the folder of this user's sockets; it need not be there."""
    return Path(str(settings.read(environ)["look_dir"]) or f"/tmp/horoacc-{os.geteuid()}")


def doors(place: Path | None = None) -> list[Door]:
    """Lists the sockets of this host, also of processes that were killed.

    Args:
        place: Their folder; None: what this process's variables say.

    Raises:
        PermissionError: Others may have put them there.
    """
    found = []
    place = place or folder()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check(place)
        for name in sorted(os.listdir(place)):
            job, _, rest = name.partition(".")
            owner, _, pid = rest.partition(".")
            if job and pid.isdigit() and (owner.isdigit() or owner in (LAUNCHER, AGENT)):
                found.append(Door(place / name, job, owner, int(pid)))
    return found


def is_users(link: socket.socket) -> bool:
    """Says whether the process at the other end of a Unix socket is this user's."""
    return _other_end(link)[1] == os.geteuid()


def _other_end(link: socket.socket) -> tuple[int, int]:
    """Which process it is, 0 if it has no number in this namespace, and whose."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    return pid, user


def ask(
    addresses: Mapping[int, str | bytes],
    seconds: float,
    question: bytes = b"",
    listeners: dict[int, int] | None = None,
) -> dict[int, bytes]:
    """Asks Unix sockets of this user's processes, all at once.

    Args:
        addresses: By rank.
        seconds: How long all of them have.
        question: What is said to each first.
        listeners: Gets the process that listens at each, as the kernel knows it.

    Returns:
        What each said until it closed, by rank; not of those that did not in time.
    """
    answers: dict[int, bytes] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for rank, address in addresses.items():
            link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            link.setblocking(False)
            with contextlib.suppress(OSError):
                link.connect(address)
                if is_users(link):
                    if listeners is not None:
                        listeners[rank] = _other_end(link)[0]
                    if question:  # one that answers at once may have closed already
                        link.sendall(question)
                    selector.register(link, selectors.EVENT_READ, (rank, bytearray()))
        end = time.monotonic() + seconds
        while selector.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                rank, text = key.data
                assert isinstance(key.fileobj, socket.socket)
                try:
                    part = key.fileobj.recv(_PART)
                except OSError:
                    part = b""
                text += part
                if not part:
                    selector.unregister(key.fileobj)
                    answers[rank] = bytes(text)
    return answers


def is_shut(door: Door) -> bool:
    """Says whether nobody listens there any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.setblocking(False)
        try:
            link.connect(str(door.path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:  # it has many to answer
            return False
    return False


def start() -> None:
    """Opens this rank's until `shutdown()`. The job goes on without it."""
    if process.prepares():
        return  # an elastic job's newcomer, which is no rank yet
    where = process.position()
    try:
        listener, path = listen(job_name(), str(where.rank), os.environ)
        with contextlib.closing(listener):
            process.engine().serve_readings(listener.detach())
    except OSError as error:
        if where.local_rank == 0:
            tell_once(cannot_look(error, os.environ))
        return

    def close() -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    process.before_shutdown(close)


def listen(job: str, owner: str, environ: Mapping[str, str]) -> tuple[socket.socket, Path]:
    """Listens where processes of this user find this one.

    Args:
        job: The short name of its job.
        owner: What it is there: a rank's number, LAUNCHER or AGENT.
        environ: Variables, which may name the folder.

    Returns:
        The socket, and its file, which is to be removed at the end.

    Raises:
        OSError: The folder cannot be used.
    """
    place = folder(environ)
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
    _check(place)
    _sweep(place)
    path = place / f"{job}.{owner}.{os.getpid()}"
    return _listener(path), path


def cannot_look(error: OSError, environ: Mapping[str, str]) -> str:
    """Says that `listen` has failed."""
    why = error.strerror or error
    return f"'horoaccrun top' cannot look at this job: {folder(environ)}: {why}"


def job_name() -> str:
    """Gives a short name of the job, alike on its ranks, of an elastic one for its whole life."""
    known = ("PMIX_NAMESPACE", "PMI_JOBID", "MASTER_PORT")
    own = os.environ.get("HOROACC_COORDINATOR") if process.is_elastic() else process.job_name()
    if process.position().size == 1 and not own:
        own = f"process {os.getpid()}"
    return short(own or next(filter(None, map(os.environ.get, known)), str(os.getppid())))


def short(name: str) -> str:
    """Gives the short name of a job: of an elastic one by its coordinator's address, of another one
    by what `job_secret` makes of its secret.
    """
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _check(place: Path) -> None:
    """Raises PermissionError unless the folder is this user's alone."""
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(0, f"{place} is not a folder of this user's alone (mode 0700)")


def _listener(path: Path) -> socket.socket:
    """Listens at a path, which is there only once somebody listens."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = path.with_name(f".{path.name}")
    try:
        hidden.unlink(missing_ok=True)
        listener.bind(str(hidden))
        os.chmod(hidden, 0o600)
        listener.listen(16)
        hidden.rename(path)
    except OSError:
        listener.close()
        raise
    return listener


def _sweep(place: Path) -> None:
    """Removes the sockets of processes that were killed."""
    for door in doors(place):
        if not os.path.exists(f"/proc/{door.pid}") and is_shut(door):
            with contextlib.suppress(OSError):
                door.path.unlink()
