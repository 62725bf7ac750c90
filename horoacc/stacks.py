"""Lets the core ask where this process's interpreter is, whatever it is doing.

`faulthandler` writes the stacks of all threads from a signal's handler, without the interpreter's
lock: also while one thread holds it in a long call, or sleeps. The core sends the signal to a
thread of its own, so that no other thread is interrupted, and reads what was written.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horoacc._core import Engine

__all__ = ["StackWatch"]


class StackWatch:
    """What is registered for one engine, from `init()` to `shutdown()`."""

    def __init__(self, engine: Engine, on_request: bool) -> None:
        """Registers the signals.

        Args:
            engine: Who is to ask.
            on_request: Whether SIGUSR1 asks for a record of the latest events, unless the script
                has a use of its own for it.
        """
        self._registered: list[int] = []
        self._files: list[int] = []
        number = next(filter(_is_free, range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)), None)
        stacks = -1 if number is None else self._register(number)
        asked = self._register(signal.SIGUSR1) if on_request and _is_free(signal.SIGUSR1) else -1
        engine.watch_stacks(-1 if number is None else number, stacks, asked)

    def _register(self, number: int) -> int:
        # Its size tells the core that the handler has run.
        file = os.memfd_create("horoacc-stacks", os.MFD_CLOEXEC)
        self._files.append(file)
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        faulthandler.register(number, file=file, all_threads=True, chain=False)
        self._registered.append(number)
        return file

    def close(self) -> None:
        """Takes all of it back. The engine must have been shut down."""
        while self._registered:
            faulthandler.unregister(self._registered.pop())
        while self._files:
            with contextlib.suppress(OSError):
                os.close(self._files.pop())


def _is_free(number: int) -> bool:
    """Whether nobody, in Python or not, has a handler for a signal."""
    return signal.getsignal(number) == signal.SIG_DFL
