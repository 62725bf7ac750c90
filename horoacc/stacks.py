"""Lets the core ask where this process's interpreter is, whatever it is doing.

A thread of its own waits for the core's questions and answers while it holds the interpreter's
lock: no other thread moves meanwhile. If the lock is not to be had soon, because one thread holds
it in a long call, the core sends itself a signal, whose handler (`faulthandler`'s) writes the
stacks without the lock.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horoacc._core import Engine

__all__ = ["StackWatch"]

_MOST_BYTES = 60_000
_OWN_SECTION = re.compile(rb"Current thread .*?\n\n", re.DOTALL)


class StackWatch:
    """What is registered for one engine, from `init()` to `shutdown()`."""

    def __init__(self, engine: Engine, on_request: bool) -> None:
        """Registers the signals and starts the thread.

        Args:
            engine: Who is to ask.
            on_request: Whether SIGUSR1 asks for a record of the latest events, unless the script
                has a use of its own for it.
        """
        # Not at the head: horoaccrun works without the core, and says that it is missing.
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
        if os.getpid() == self._pid:  # a forked child has not the thread, but the same sockets
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
    file = _stack_file()
    try:
        while question := questions.recv(64):
            os.ftruncate(file, 0)
            faulthandler.dump_traceback(file=file, all_threads=True)
            stacks = _OWN_SECTION.sub(b"", os.pread(file, _MOST_BYTES, 0), count=1)
            questions.send(question + stacks)
    except OSError:  # nobody asks any more
        pass
    finally:
        os.close(file)
