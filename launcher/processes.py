"""Makes sure, with the means of Linux, that no process outlives its job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from horoacc.launcher import segments

# Constants of <sys/prctl.h>, which Python's standard library does not have.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
# Ranks that are all killed sooner than this after MPI_Init may leave a segment.
_LOOK_SECONDS = 0.1


def die_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: the child gets signal `number` when this process dies, even of SIGKILL."""
    parent = os.getpid()

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def end_with_parent() -> None:
    """Has this process killed when the one dies that started it; not if it is gone already."""
    if os.getppid() > 1:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs, so that it can end them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(group: int, number: int) -> bool:
    """Sends a signal to a process group; False if it has no members any more."""
    try:
        os.killpg(group, number)
        if number not in (0, signal.SIGKILL):
            os.killpg(group, signal.SIGCONT)  # a stopped process handles nothing
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_descendants(spared: Iterable[int] = ()) -> None:
    """Kills all descendants of this process, except the spared and their descendants."""
    for pid in descendants(os.getpid(), spared):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def descendants(root: int, spared: Iterable[int] = ()) -> set[int]:
    """The descendants of a process, without itself, and without the spared and theirs."""
    relatives = _relatives()
    keep = set(spared)
    below = {root}
    grown = True
    while grown:
        found = {pid for pid, its in relatives.items() if its.parent in below} - below - keep
        grown = bool(found)
        below |= found
    return below - {root}


def _members(groups: set[int]) -> list[int]:
    """The processes in process groups."""
    return [pid for pid, its in _relatives().items() if its.group in groups]


class _Relatives(NamedTuple):
    parent: int
    group: int


def _relatives() -> dict[int, _Relatives]:
    """The parent and the group of every process that /proc shows."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything, parentheses too.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[int(entry.name)] = _Relatives(int(fields[1]), int(fields[2]))
    return found


class Watchdog:
    """A small process that cleans up after the job, even if the launcher dies without a chance to.

    It kills the ranks' groups and removes the job's folders, and the shared memory of MPI's that
    killed ranks have left. The ranks themselves die with the launcher anyway (`die_with_parent`);
    the watchdog is for the processes that they started. It reads orders from a pipe, whose end
    means that the job is over or the launcher is gone.
    """

    def __init__(self) -> None:
        self._seeks = False
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._writer)
                _watch(reader)
            finally:
                os._exit(0)
        os.close(reader)

    def add(self, group: int) -> None:
        """Puts a group under watch."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Forgets a group that is gone: its number may be another's soon."""
        self._tell(f"-{group}\n")

    def folder(self, parent: str) -> str:
        """Makes a folder that is removed when the job is over."""
        path = tempfile.mkdtemp(prefix="horoacc-", dir=parent)
        self._tell(f"/{path}\n")
        return path

    def seek_segments(self) -> None:
        """Looks for MPI's shared memory in /dev/shm, to remove segments that ranks leave there."""
        self._seeks = True
        self._tell("?\n")

    def note_segments(self, groups: set[int]) -> None:
        """Has the segments removed that groups have mapped; called before the groups are ended."""
        if self._seeks:
            for segment in segments.mapped_by(_members(groups)):
                self._tell(f"={segment.inode} {segment.path}\n")

    def dismiss(self) -> None:
        """Lets the watchdog do its work, and waits for it."""
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):  # it was killed, and reaped
            os.waitpid(self.pid, 0)

    def _tell(self, line: str) -> None:
        try:
            os.write(self._writer, line.encode())
        except BrokenPipeError:
            return  # it was killed; the ranks still die with the launcher


def _watch(reader: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    # A reader of the launcher's output waits for its end; this process must not hold it open.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, reader)
    os.closerange(reader + 1, 1024)
    groups: set[int] = set()
    folders: list[str] = []
    search: segments.Search | None = None
    rest = b""
    while True:
        if not select.select([reader], [], [], _LOOK_SECONDS if search else None)[0]:
            assert search
            search.look(lambda: _members(groups))
            continue
        data = os.read(reader, 4096)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            kind, text = line[:1], line[1:].decode()
            if kind == b"/":
                folders.append(text)
            elif kind == b"?":
                search = segments.Search()
            elif kind == b"=" and search:
                inode, path = text.split(" ", 1)
                search.found.add(segments.Segment(path, int(inode)))
            else:
                (groups.add if kind == b"+" else groups.discard)(int(text))
    for group in groups:
        signal_group(group, signal.SIGKILL)
    if search:
        segments.remove(search.found)
    for folder in folders:
        # A killed process may be writing its last file.
        for _ in range(20):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.05)
