"""Handles of asynchronous calls: what they keep alive and what they give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from horoacc._core import Engine, Output


class Pending(NamedTuple):
    """A call that nobody has synchronised yet."""

    engine: Engine
    result: Any
    """What synchronize() gives back, if `finish` is None. It keeps the output alive."""
    finish: Callable[[list[Output]], Any] | None
    """Makes the result from memory that the engine allocated."""


_pending: dict[int, Pending] = {}


def start(
    engine: Engine,
    handle: int,
    result: Any = None,
    finish: Callable[[list[Output]], Any] | None = None,
) -> int:
    """Notes a submitted call.

    Args:
        engine: The engine that it was submitted to.
        handle: The engine's handle.
        result: What to give back, if the caller owned the output.
        finish: Makes what to give back from the engine's outputs.

    Returns:
        The handle.
    """
    _pending[handle] = Pending(engine, result, finish)
    return handle


def poll(handle: int) -> bool:
    """Says whether a call is complete, so that `synchronize` would not wait.

    Args:
        handle: What an asynchronous call returned.

    Returns:
        True if it is complete.

    Raises:
        ValueError: The handle was never given out, or was synchronised already.
    """
    found = _pending.get(handle)
    if found is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return found.engine.poll(handle)


def synchronize(handle: Any) -> Any:
    """Waits for a call and gives its result. Its name may be used again afterwards.

    Args:
        handle: What an asynchronous call returned.

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
    engine, result, finish = found
    try:
        engine.wait(handle)
        if finish is not None:
            result = finish(engine.outputs(handle))
    except BaseException:
        # What a signal's handler raised leaves the handle as it is: the engine still works on the
        # tensors.
        if has_ended(engine, handle):
            _pending.pop(handle, None)
            engine.release(handle)
        raise
    _pending.pop(handle, None)
    engine.release(handle)
    return result


def has_ended(engine: Engine, handle: int) -> bool:
    """Says whether the engine has finished with a call's tensors.

    Args:
        engine: The engine that it was submitted to.
        handle: The engine's handle.

    Returns:
        True also if the engine does not know the call any more.
    """
    try:
        return engine.poll(handle)
    except ValueError:
        return True


def forget() -> None:
    """Forgets what nobody synchronised; the next engine counts from the same number."""
    _pending.clear()
