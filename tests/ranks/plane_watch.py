"""Checks around every body that negotiation went the way that the pool's variables ask for."""

from __future__ import annotations

import os

from horoacc import basics


class PlaneWatch:
    """What the engine had sent before a body ran."""

    def __init__(self) -> None:
        self._before = _counted()

    def check(self) -> None:
        """Fails unless the control plane that was asked for carried the body's calls."""
        after = _counted()
        if after is None or basics.size() == 1:
            return
        engine, submissions, messages = after
        if self._before is not None and self._before[0] == engine:
            submissions -= self._before[1]
            messages -= self._before[2]
        plane = os.environ.get("HOROACC_CONTROL", "auto")
        if plane == "auto" and "HOROACC_SIMULATED_HOSTS" in os.environ:
            plane = "tcp"
        told = f"{submissions} submissions sent {messages} messages with the control plane {plane}"
        assert (messages > 0) == (plane in ("tcp", "mpi") and submissions > 0), told
        if "HOROACC_TEST_MPIRUN" in os.environ:
            assert basics.bootstrap() == "mpi"


def _counted() -> tuple[int, int, int] | None:
    """The engine, its submissions and its messages; None if there is no engine."""
    if not basics.is_initialized():
        return None
    counters = basics.counters()
    # The address of an engine that was asked for is never another one's.
    return basics.engine().address, counters["submissions"], counters["control_messages"]
