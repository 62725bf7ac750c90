"""A real terminal, tmux's, that a test reads."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Terminal:
    """A terminal in which one program runs.

    Args:
        folder: For its sockets.
        environ: Of the program.
        inside: The command that runs another one where the program is to run.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], inside: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._runs = 0
        self._inside = inside
        self._environ = {**environ, "TERM": "screen", "LANG": "C.UTF-8"}

    @property
    def _tmux(self) -> list[str]:
        """A server for each run: one that ends keeps its socket for a while."""
        return ["tmux", "-u", "-f", "/dev/null", "-S", str(self._folder / f"tmux{self._runs}")]

    def run(self, *arguments: str) -> None:
        """Runs horoaccrun there, in the place of what ran before."""
        self.close()
        self._runs += 1
        words = [sys.executable, "-m", "horoacc.launcher.main", *arguments]
        size = ["-x", "150", "-y", "40"]
        line = shlex.join([*self._inside, *words]) + "; echo ENDS; sleep 600"
        subprocess.run(
            [*self._tmux, "new-session", "-d", *size, line], env=self._environ, check=True
        )

    def text(self) -> str:
        """What is to be seen."""
        shown = subprocess.run(
            [*self._tmux, "capture-pane", "-p", "-J"], capture_output=True, text=True, check=False
        )
        return shown.stdout

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Until something is to be seen."""
        end = time.monotonic() + seconds
        while not re.search(pattern, text := self.text()):
            assert time.monotonic() < end, (pattern, text)
            time.sleep(0.02)
        return text

    def key(self, name: str) -> None:
        subprocess.run([*self._tmux, "send-keys", name], check=True)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)
