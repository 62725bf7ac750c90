"""Lets the core ask for the stacks of this process's interpreter at any time.

A thread of its own waits for the core's questions and answers while it holds the interpreter's
lock, so that no other thread runs meanwhile. If it cannot get the lock soon, the core forks a copy
of the process, in which a signal handler (`faulthandler`'s) writes the stacks without the lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from horoacc._core import Engine

__all__ = ["StackWatch"]

_MOST_BYTES = 60_000
_MOST_FRAMES = 100


class StackWatch:
    """The registrations for one engine, from `init()` to `shutdown()`."""

    def __init__(self, engine: Engine, on_request: bool) -> None:
        """Registers the signals and starts the thread.

        Args:
            engine: The engine that asks.
            on_request: Whether SIGUSR1 asks for a record of the latest events, unless the script
                has a use of its own for it.
        """
        # Imported late: horoaccrun works without the core, and reports that it is missing.
        from horoacc import _core  # noqa: PLC0415

        self._core = _core
        self._pid = os.getpid()
        free = filter(_core.signal_is_free, range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1))
        self._number = next(free, None)
        self._written = _stack_file()
        if self._number is not None:
            faulthandler.register(self._number, file=self._written, all_threads=True, chain=False)
        self._asked_by = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        core, own = self._asked_by
        self._thread = threading.Thread(
            target=_answer, args=(own,), name="horoacc-stacks", daemon=True
        )
        self._thread.start()
        heed = on_request and _core.hear_requests(signal.SIGUSR1)
        engine.watch_stacks(
            core.fileno(), -1 if self._number is None else self._number, self._written, heed
        )

    def close(self) -> None:
        """Takes all of it back. The engine must have been shut down."""
        core, own = self._asked_by
        if os.getpid() == self._pid:  # a forked child has the same sockets, but not the thread
            with contextlib.suppress(OSError):
                core.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        core.close()
        own.close()
        self._core.end_requests(signal.SIGUSR1)
        if self._number is not None:
            faulthandler.unregister(self._number)
        os.close(self._written)


def _stack_file() -> int:
    file = os.memfd_create("horoacc-stacks", os.MFD_CLOEXEC)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file


def _answer(questions: socket.socket) -> None:
    """Answers until the other end is shut down."""
    # The core asks no more once the socket fails.
    with contextlib.suppress(OSError):
        while question := questions.recv(64):
            questions.send(question + _stacks())


def _stacks() -> bytes:
    """As faulthandler writes them, which shows no more than a hundred threads: a section for each.

    The main thread's is the last, and whole; the others' are there as they fit.
    """
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    main = threading.main_thread().ident or 0
    last = _section(main, frames.pop(main, None))
    room = _MOST_BYTES - len(last)
    sections = []
    for thread, frame in frames.items():
        section = _section(thread, frame)
        room -= len(section)
        if room < 0:
            break
        sections.append(section)
    return b"\n".join([*sections, last])


def _section(thread: int, frame: FrameType | None) -> bytes:
    lines = [f"Thread 0x{thread:016x} (most recent call first):"]
    while frame is not None and len(lines) <= _MOST_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return ("\n".join(lines) + "\n").encode(errors="replace")
