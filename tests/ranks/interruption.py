"""A signal that comes while the core waits, and no sooner."""

from __future__ import annotations

import contextlib
import linecache
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

WAITS = (
    "engine.wait(", "engine.finish(", "= engine.allreduce(", "= engine.reduce_array(",
    "done = call(", "return call(",
)  # fmt: skip


@contextlib.contextmanager
def cancelled(raised: type[BaseException], *lines: str) -> Iterator[None]:
    """Expects that a signal's handler raises out of the body, which waits in the core.

    Args:
        raised: What the handler raises.
        lines: What the line of Python says that waits, else one of WAITS. Another thread sees this
            one there only while it is in that call: the interpreter changes threads at no other
            place of such a line.
    """
    here = threading.get_ident()
    over = threading.Event()

    def ring(number: int, frame: object) -> None:
        raise raised("cancelled")

    def watch() -> None:
        while not over.is_set():
            frame = sys._current_frames()[here]
            said = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if any(line in said for line in lines or WAITS):
                return signal.pthread_kill(here, signal.SIGALRM)
            time.sleep(0.001)

    before = signal.signal(signal.SIGALRM, ring)
    watcher = threading.Thread(target=watch)
    try:
        with pytest.raises(raised, match="cancelled"):
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()
    finally:
        signal.signal(signal.SIGALRM, before)
