"""The loop around a training function: synchronise, train, and after an error go back.

Which errors end the job and which it can go on after:

* `Mismatch`: raised as it is: the program is wrong, and the error would come again.
* a rank is lost, or does not come back: in an elastic job (`horoaccrun --min-np`) the others
  restore, meet again without it, and synchronise. In a job whose size is fixed nothing replaces a
  rank: the state is restored, and the error is raised with a hint.
* any other `HorovodInternalError`: all ranks restore, leave the job, join it again and synchronise.
* `HostsUpdatedInterrupt`: the same without going back, and as it asks without synchronising.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from horoacc import basics
from horoacc.elastic import member
from horoacc.elastic.notices import Notices
from horoacc.elastic.state import State
from horoacc.errors import (
    Aborted,
    HoroaccError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    Mismatch,
    PeerLost,
    Timeout,
)

R = TypeVar("R")

notification_manager = Notices()
"""Brings the states of running training functions news of hosts. Horovod's name."""

# After so many resets without a commit the error is permanent.
_FRUITLESS_RESETS = 3


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Makes a training function go back to its last commit after an error.

    Args:
        func: Takes the state and any further arguments.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        HorovodInternalError: From the function that is returned: one that the job cannot go on
            after. The state is that of the last commit.
    """
    return run_fn(func, rejoin)


def rejoin(attach: Callable[[], object] = lambda: None) -> None:
    """Leaves the job, joins it again, and has a framework attach to the new engine."""
    basics.shutdown()
    basics.init()
    attach()


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """As `run`, with a framework's own way to leave the job and join it again.

    Args:
        func: Takes the state and any further arguments.
        reset: Leaves the job and joins it again.

    Returns:
        A function of the same arguments.
    """

    @functools.wraps(func)
    def training(state: State, *args: Any, **kwargs: Any) -> R:
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            return _train(func, reset, state, args, kwargs)
        finally:
            notification_manager.remove_listener(state)

    return training


def _train(
    func: Callable[..., R],
    reset: Callable[[], None],
    state: State,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> R:
    elastic = member.member() if member.is_elastic() else None
    skip_sync = False
    fruitless = 0
    while True:
        commits = state.commits
        failure: HorovodInternalError | None = None
        try:
            if not skip_sync:
                state.sync()
            return func(state, *args, **kwargs)
        except Mismatch:
            raise
        except HorovodInternalError as error:
            failure = error
            skip_sync = False
            state.restore()
            lost = isinstance(error, PeerLost | Timeout | Aborted)
            fruitless = 1 if state.commits != commits else fruitless + 1
            if elastic is not None:
                elastic.failed(error)
                elastic.progress = state.commits - commits
                fruitless -= lost  # the coordinator counts these
            elif isinstance(error, PeerLost):
                raise _final(error, "a rank that is lost is not replaced") from error
            if fruitless > _FRUITLESS_RESETS:
                raise _final(error, f"it came {fruitless} times without a commit") from error
        except HostsUpdatedInterrupt as interrupt:
            skip_sync = interrupt.skip_sync
            if elastic is not None:
                elastic.progress = state.commits - commits
        try:
            reset()
        except (PeerLost, Timeout) as error:
            if failure is None:
                raise
            raise _final(failure, f"the ranks did not meet again: {error}") from error
        if elastic is not None:
            skip_sync = not elastic.sync  # all ranks, or none
        state.on_reset()


def _final(error: HorovodInternalError, why: str) -> HorovodInternalError:
    """Adds a hint to an error."""
    text = (
        f"{error}; {why}, so that this job cannot go on: "
        "the state is that of the last commit, and the job has to be started again"
    )
    if isinstance(error, HoroaccError):
        final = type(error)(text)
        vars(final).update(vars(error))
        return final
    return HorovodInternalError(text)
