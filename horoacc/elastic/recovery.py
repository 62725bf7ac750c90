"""The loop around a training function in an elastic job.

After an error the ranks that are left ask the coordinator for seats, and report how far each has
come. The coordinator makes one that is farthest rank 0, and says which of two ways all take:

* forward: what the state holds stays as it stands on the ranks that are farthest; the others get it
  from rank 0. No step is lost that a rank has applied.
* commit: all go back to their last commit, and get that of the new rank 0.

The training function is then called again. Each rank that has the job's state saves it before rank
0 shares its own, so that a death in the middle of that leaves it with a state that is whole.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TypeVar

from horoacc import process_sets, settings
from horoacc.elastic.member import member
from horoacc.elastic.state import State
from horoacc.errors import (
    Aborted,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Mismatch,
    PeerLost,
    Timeout,
)
from horoacc.launcher.elastic.membership import Report

R = TypeVar("R")

WAYS = ("auto", "forward", "commit")
FRUITLESS_RESETS = 3
"""After so many resets without a step or a commit the error is permanent."""


def train(func: Callable[[], R], reset: Callable[[], None], state: State, recover: str | None) -> R:
    """Calls the training function until it returns.

    Args:
        func: Trains the state.
        reset: Leaves the job and joins it again.
        state: What is shared, saved and restored.
        recover: One of WAYS, or None for the setting.

    Returns:
        What `func` returned.

    Raises:
        HorovodInternalError: An error comes again and again without a death.
    """
    own = member()
    way = recover or str(settings.read(os.environ)["recover"])
    fruitless = 0
    sync = True
    holds = False  # this process has had the job's state
    was_reset = own.expected is not None  # it has prepared itself beside the others
    if was_reset:
        reset()
    while True:
        steps, commits = _steps(state), state.commits
        synced = False
        try:
            if was_reset:
                process_sets.bring_back()
                state.on_reset()  # its callbacks may train, and meet a death
            if sync:
                state.sync()
            synced = holds = True
            return func()
        except Mismatch:
            raise
        except HorovodInternalError as error:
            progress = Report(
                _steps(state) - steps,
                state.commits - commits,
                uncommitted=_steps(state) - max(steps, state._steps_at_commit),
            )
            fruitless = 1 if progress.steps or progress.commits else fruitless + 1
            if isinstance(error, PeerLost | Timeout | Aborted):
                fruitless = 0  # somebody died; the coordinator has limits of its own
            if fruitless > FRUITLESS_RESETS:
                raise
            if synced:
                own.report(_report(state, progress, way, error), error)
            else:
                # Its state is a mixture, and goes back to what was saved before it was shared.
                behind = 0 if own.level else -1 if holds else -2
                own.report(Report(behind, behind, failed=True), error)
                state.restore()
        except HostsUpdatedInterrupt:
            own.report(Report(_steps(state) - steps, state.commits - commits))
        reset()
        was_reset = True
        if own.recover == "commit":
            state.restore()
        elif holds:  # so that a death while it is shared takes nothing
            state.save()
        sync = own.sync


def _steps(state: State) -> int:
    """By its class: a program may keep a value of that name in its state."""
    return type(state).steps(state)


def _report(state: State, progress: Report, way: str, error: HorovodInternalError) -> Report:
    """How far this rank has come, and whether it can go forward."""
    obstacle = (
        "recover='commit' was asked for" if way == "commit" else type(state).obstacle(state, error)
    )
    risk = obstacle if way == "forward" else ""
    return dataclasses.replace(progress, failed=True, obstacle="" if risk else obstacle, risk=risk)
