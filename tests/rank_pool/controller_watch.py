"""Checks around every body that the controller of the pool's variables carried its calls."""

from __future__ import annotations

import os

from horoacc import basics


class ControllerWatch:
    """What the engine had sent before a body ran."""

    def __init__(self) -> None:
        self._before = _counted()

    def check(self) -> None:
        """Fails unless messages carried the body's calls between hosts, and only there.

        A host's lowest rank leads each set that it is in, and the other ranks may lead none.
        """
        after = _counted()
        if after is None or basics.size() == 1:
            return
        engine, submissions, messages = after
        if self._before is not None and self._before[0] == engine:
            submissions -= self._before[1]
            messages -= self._before[2]
        hosts = os.environ.get("HOROACC_SIMULATED_HOSTS", "")
        told = f"{submissions} submissions sent {messages} messages on the hosts '{hosts}'"
        assert messages == 0 or (hosts != "" and submissions > 0), told
        if hosts != "" and submissions > 0 and basics.local_rank() == 0:
            assert messages > 0, told
        if "HOROACC_TEST_MPIRUN" in os.environ:
            assert basics.bootstrap() == "mpi"


def _counted() -> tuple[int, int, int] | None:
    """The engine, its submissions and its messages; None if there is no engine."""
    if not basics.is_initialized():
        return None
    counters = basics.counters()
    # An engine whose address was asked for is never freed, so no other engine has its address.
    return basics.engine().address, counters["submissions"], counters["control_messages"]
