"""Runs the agent of one host of a cluster, and the courier of its ranks.

For the process that the cluster starts there, such as a Ray actor, which is the agent's parent. A
small file: the job waits for what it imports.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

from horoacc import dropin
from horoacc.launcher.courier import VARIABLE, Courier
from horoacc.launcher.processes import die_with_parent, end_with_parent

ENDED = "ended"
"""The name under which the agent's exit code comes, at last."""
# For what ranks have sent before they ended.
_COURIER_SECONDS = 10.0


class HostAgent:
    """A host of an elastic job. The agent dies with this object's process."""

    def run(
        self, number: int, host: str, environ: Mapping[str, str], call: bytes, as_horovod: bool
    ) -> Iterator[tuple[str, bytes]]:
        """Runs the agent to its end.

        Args:
            number: The agent's.
            host: The host that it is for.
            environ: Variables for it and its workers.
            call: The pickled function of the workers.
            as_horovod: Whether `import horovod` gives HoroACC there.

        Yields:
            What the workers send, and how the agent has ended.
        """
        end_with_parent()  # a cluster may leave it behind when its daemon on the host dies
        told: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        courier = Courier(call, sys.path, lambda name, body: told.put((name, body)))
        environ = {**os.environ, **environ, VARIABLE: courier.name}
        if as_horovod:
            dropin.for_children(environ)
        agent = subprocess.Popen(
            [sys.executable, "-m", "horoacc.launcher.elastic.agent", str(number), host],
            env=environ,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )

        def wait() -> None:
            code = agent.wait()
            courier.close(_COURIER_SECONDS)
            told.put((ENDED, str(code).encode()))

        threading.Thread(target=wait, name="horoacc-agent", daemon=True).start()
        name = ""
        while name != ENDED:
            name, body = told.get()
            yield name, body
