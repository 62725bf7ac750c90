"""The loop around a training function: synchronise, train, and after an error go back or on.

In an elastic job (`horoaccrun --min-np`) `horoacc.elastic.recovery` is that loop. In a job whose
ranks are fixed, these errors end it or not:

* `Mismatch`: raised as it is: the program is wrong, and the error would come again.
* a rank is lost, or does not come back: the state is restored, and the error is raised with a hint,
  because nothing replaces a rank.
* any other `HorovodInternalError`: all ranks restore, leave the job, join it again and synchronise.
* `HostsUpdatedInterrupt`: the same without going back, and as it asks without synchronising.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from horoacc import basics, process, process_sets
from horoacc.elastic.notices import Notices
from horoacc.elastic.recovery import FRUITLESS_RESETS, WAYS, train
from horoacc.elastic.state import State
from horoacc.errors import (
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


def run(func: Callable[..., R] | None = None, *, recover: str | None = None) -> Any:
    """Makes a training function go on after an error, in an elastic job also without lost ranks.

    It is called again after each error that the job goes on after: from its beginning, with the
    state as it is then. Use it as `@run` or as `@run(recover="commit")`.

    Args:
        func: Takes the state and any further arguments.
        recover: "commit" goes back to the last commit after an error in an elastic job; "forward"
            keeps the state as it stands; "auto" goes forward where that loses and repeats nothing,
            and back otherwise. None: the setting HOROACC_RECOVER.

    Returns:
        A function of the same arguments and result as `func`.

    Raises:
        HorovodInternalError: From the function that is returned: one that the job cannot go on
            after. The state is that of the last commit.
        ValueError: `recover` is none of these.
    """
    return decorated(func, recover, lambda f, way: run_fn(f, rejoin, way))


def decorated(
    func: Callable[..., R] | None,
    recover: str | None,
    wrap: Callable[[Callable[..., R], str | None], Callable[..., R]],
) -> Any:
    """What a decorator with and without arguments returns.

    Args:
        func: The function, or None if only arguments were given.
        recover: As of `run`.
        wrap: Makes the function that is returned for a function.
    """
    if recover not in (None, *WAYS):
        raise ValueError(f"recover must be one of {', '.join(WAYS)}, not {recover!r}")
    return (lambda f: wrap(f, recover)) if func is None else wrap(func, recover)


def rejoin(attach: Callable[[], object] = lambda: None) -> None:
    """Leaves the job, joins it again, and has a framework attach to the new engine."""
    basics.shutdown()
    basics.init()
    attach()


def run_fn(
    func: Callable[..., R], reset: Callable[[], None], recover: str | None = None
) -> Callable[..., R]:
    """As `run`, with a framework's own way to leave the job and join it again.

    Args:
        func: Takes the state and any further arguments.
        reset: Leaves the job and joins it again.
        recover: As of `run`.

    Returns:
        A function of the same arguments.
    """

    @functools.wraps(func)
    def training(state: State, *args: Any, **kwargs: Any) -> R:
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            if process.is_elastic():
                with process_sets.training():
                    return train(lambda: func(state, *args, **kwargs), reset, state, recover)
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
            fruitless = 1 if state.commits != commits else fruitless + 1
            if isinstance(error, PeerLost):
                raise _final(error, "a rank that is lost is not replaced") from error
            if fruitless > FRUITLESS_RESETS:
                raise _final(error, f"it came {fruitless} times without a commit") from error
        except HostsUpdatedInterrupt as interrupt:
            skip_sync = interrupt.skip_sync
        try:
            reset()
        except (PeerLost, Timeout) as error:
            if failure is None:
                raise
            raise _final(failure, f"the ranks did not meet again: {error}") from error
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
