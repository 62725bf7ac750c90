"""Handles of asynchronous calls: the tensors that they keep alive, and their results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horoacc._core import Engine, Output

    # A call that has not been synchronised yet: the arguments of `start`.
    Pending = tuple[
        Engine, int, Any, Callable[[list[Output]], Any] | None, Callable[[], int] | None
    ]

_pending: dict[int, Pending] = {}
_handles = itertools.count(1)


def start(
    engine: Engine,
    number: int,
    result: Any = None,
    finish: Callable[[list[Output]], Any] | None = None,
    stream: Callable[[], int] | None = None,
) -> int:
    """Notes a submitted call, and gives its handle.

    Args:
        engine: The engine that it was submitted to.
        number: The engine's number of it. Every engine counts from 1; handles go on, so that one
            from before `shutdown()` is never another call's.
        result: The result of synchronize(), if `finish` is None. It keeps the output alive.
        finish: Makes the result from memory that the engine allocated.
        stream: Of a GPU's tensors: the stream on which the caller of `synchronize` works there.
    """
    handle = next(_handles)
    _pending[handle] = (engine, number, result, finish, stream)
    return handle


def poll(handle: int) -> bool:
    """Says whether a call is complete, so that `synchronize` would not wait.

    Args:
        handle: The return value of an asynchronous call.

    Returns:
        True if it is complete.

    Raises:
        ValueError: The handle was never given out, or was synchronised already.
    """
    found = _pending.get(handle)
    if found is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    engine, number, *_ = found
    return engine.poll(number)


def synchronize(handle: Any) -> Any:
    """Waits for a call and gives its result. Its name may be used again afterwards.

    Of a tensor on a GPU the result is there for later work on the current stream; the host does not
    wait for the copy to the GPU.

    Args:
        handle: The return value of an asynchronous call.

    Returns:
        The result, or None for a handle that is unknown or was synchronised already.

    Raises:
        HorovodInternalError: The collective failed; `horoacc.errors` has the types.
    """
    if callable(handle):
        return handle()
    found = _pending.get(handle)
    if found is None:
        return None
    engine, number, result, finish, stream = found
    try:
        if finish is None and stream is None:
            engine.finish(number)
            _pending.pop(handle, None)
            return result
        engine.wait(number)
        if stream is not None:
            engine.join_stream(number, stream())
        if finish is not None:
            result = finish(engine.outputs(number))
    except BaseException:
        # An exception of a signal's handler leaves the handle as it is: the engine still uses the
        # tensors.
        if has_ended(engine, number):
            _pending.pop(handle, None)
            engine.release(number)
        raise
    _pending.pop(handle, None)
    engine.release(number)
    return result


def result(handle: int) -> Any:
    """Waits for a call of which the caller has no handle; else as `synchronize`.

    An exception of a signal's handler ends the wait. The call goes on without a handle: the engine
    keeps its tensors alive until it is complete, and frees its name then.
    """
    try:
        return synchronize(handle)
    finally:
        left = _pending.pop(handle, None)
        if left is not None:
            engine, number, *_ = left
            engine.release(number)


def has_ended(engine: Engine, number: int) -> bool:
    """Says whether the engine has finished with a call's tensors, or does not know it any more."""
    try:
        return engine.poll(number)
    except (KeyError, ValueError):  # a signal's handler may raise right after it was released
        return True


def forget() -> None:
    """Forgets the calls that were not synchronised, when there is another engine."""
    _pending.clear()
