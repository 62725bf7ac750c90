"""The process that ranks are forked from: importing a framework takes longer than most tests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORK_SERVER = Path(__file__).with_name("fork_server.py")
START_SECONDS = 300.0
END_SECONDS = 10.0
# What other launchers leave behind must not decide who the workers think they are.
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HOROVOD_", "HOROACC_")
KEPT = ("HOROACC_CACHE_DIR",)


class BodyFailed(AssertionError):
    """A body did not end well on every rank, or there were no ranks to run it."""


def variables() -> dict[str, str]:
    """The environment of a job that nobody has started yet."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(FOREIGN) or n in KEPT}
    return kept | {"OMP_NUM_THREADS": "1", "HOROACC_START_TIMEOUT": str(int(START_SECONDS))}


class ForkServer:
    """Starts the process.

    Args:
        framework: What it imports.
        before: A command that runs the rest of its arguments, such as `unshare --mount`.
        chosen: Variables that decide how it is imported.
    """

    def __init__(
        self, framework: str, before: Sequence[str] = (), chosen: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, str(FORK_SERVER), framework],
            env=variables() | dict(chosen or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def fork(self, size: int, variables: dict[str, str], arguments: list[str]) -> list[int]:
        """Forks the ranks of a job and gives their process ids; arguments are worker.py's."""
        return self._ask({"size": size, "variables": variables, "arguments": arguments})

    def await_relays(self, address: str, arguments: list[str]) -> None:
        """From now on a rank is forked for each relay that calls at the address."""
        self._ask({"relays": address, "arguments": arguments})

    def _ask(self, order: dict[str, Any]) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BodyFailed("the process that ranks are forked from has died") from None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise BodyFailed("the process that ranks are forked from did not answer")
        return [int(pid) for pid in json.loads(line)]

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
