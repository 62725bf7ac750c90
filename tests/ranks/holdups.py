"""What a machine that has more to do than the tests adds to the times that they measure."""

from __future__ import annotations

import threading
import time


class Holdups:
    """How long this machine held up somebody who only wanted to go on after a short sleep.

    What has to happen within a time on a machine with nothing else to do may take as many turns of
    waiting for a processor as it has steps: here a watcher's look, its news to the others, their
    waking, and Python's way out of the call.
    """

    TURNS = 20

    def __init__(self) -> None:
        self._worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Holdups:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.02):
            now = time.monotonic()
            self._worst = max(self._worst, now - before - 0.02)
            before = now

    def allow(self, seconds: float) -> float:
        """What a time that an idle machine keeps becomes on this one."""
        return seconds + self.TURNS * self._worst
