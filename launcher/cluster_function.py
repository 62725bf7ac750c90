"""Calls a function on every rank of an elastic job whose agents a cluster starts.

The caller's process is connected to the cluster: it starts the job's own process, which is the
coordinator, and for it the agents (`elastic.caller_agents`). A `courier.Courier` on each host has
the function; what ranks send it, the cluster hands to `keep`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horoacc.launcher.elastic import caller_agents
from horoacc.launcher.elastic.caller_agents import Cluster
from horoacc.launcher.function import check, collect, run_job

_NAMES = re.compile(r"(result|error)\.[0-9]{1,9}")


class ClusterFunction:
    """One call. Leave it as a context, so that its folder is removed."""

    def __init__(self, line: Sequence[str], env: Mapping[str, str], secret: str = "") -> None:
        """Makes a folder for results.

        Args:
            line: Flags of horoaccrun; they make the job elastic.
            env: More variables.
            secret: The job's; empty: the job draws one.

        Raises:
            ValueError: The flags contradict each other.
        """
        check([*line], {**os.environ, **env})
        self._line = line
        self._env = env
        self._secret = secret
        self._folder = Path(tempfile.mkdtemp(prefix="horoacc-run-"))

    def __enter__(self) -> ClusterFunction:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, name: str, body: bytes) -> bool:
        """Takes what a rank sent; says whether it was a result, or an exception. Any thread."""
        if not _NAMES.fullmatch(name):
            return False
        part = self._folder / f"{name}.part"
        part.write_bytes(body)
        part.rename(self._folder / name)
        return True

    def run(self, cluster: Cluster, turn: Callable[[], object] | None = None) -> int:
        """Runs the job to its end, and gives its exit code.

        Args:
            cluster: Starts its agents.
            turn: Is called again and again meanwhile; its exception ends the job.
        """
        rank = [sys.executable, "-c", "from horoacc.launcher.courier_rank import main; main()"]
        with caller_agents.serve(cluster) as link:
            env = {
                **self._env,
                caller_agents.VARIABLE: f"{link.fileno()} {cluster.address} {self._secret}",
                "HOROACC_CALLER_PYTHON": sys.executable,
            }
            return run_job(self._folder, self._line, rank, env, [link.fileno()], turn)

    def results(self, code: int) -> list[Any]:
        """What the function returned, by rank at the job's end.

        Args:
            code: The job's exit code.

        Raises:
            Exception: As `horoacc.run`.
        """
        return collect(self._folder, code)
