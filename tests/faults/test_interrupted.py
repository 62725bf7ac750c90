"""Ctrl-C and a scheduler's signals, to the launcher and to a rank (row 31)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from faulted_jobs import FaultedJob


@pytest.mark.parametrize(
    ("size", "phase", "number"),
    [
        (4, "collective", signal.SIGINT),
        (2, "negotiating", signal.SIGTERM),
    ],
)
def test_the_launcher_is_told(
    faulted: FaultedJob, tmp_path: Path, size: int, phase: str, number: signal.Signals
) -> None:
    faulted.start(size, phase, 1, tmp_path / "go", HOROACC_GRACE_SECONDS="1")
    faulted.await_phase()
    faulted.process.send_signal(number)
    assert faulted.end() == 128 + number


@pytest.mark.parametrize(("size", "phase"), [(4, "negotiating")])
def test_a_rank_is_told(faulted: FaultedJob, tmp_path: Path, size: int, phase: str) -> None:
    """As a scheduler does that reclaims one process: the others learn whom they lost."""
    faulted.start(size, phase, 1, tmp_path / "go")
    faulted.await_phase()
    faulted.signal(1, signal.SIGINT)
    assert faulted.end() == 128 + signal.SIGINT
    assert {told.get("culprit") for told in faulted.told.values()} == {1}, faulted.told
    assert {told.get("error") for told in faulted.told.values()} == {"PeerLost"}, faulted.told
