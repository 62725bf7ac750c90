"""Horovod's functions for threads, which its users' launch scripts import."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Runs a function in a thread of its own.

    Args:
        target: The function.
        args: Its arguments.
        name: The thread's name.
        daemon: Whether the process may end while it runs.
        silent: Whether an exception ends it without a word.

    Returns:
        The thread, started.

    Raises:
        ValueError: `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}; (arg,) is one")

    def quiet() -> None:
        try:
            target(*args)
        except Exception:
            return

    thread = threading.Thread(
        target=quiet if silent else target, args=() if silent else args, name=name, daemon=daemon
    )
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Runs a function in a thread when an event is set.

    Args:
        event: The event to wait for.
        func: The function.
        args: Its arguments.
        stop: Set to give up waiting.
        check_stop_interval_s: How often to look at `stop`, in seconds.
        daemon: Whether the process may end while it waits.
        silent: Whether an exception of the function ends it without a word.

    Returns:
        The thread, started.

    Raises:
        ValueError: An event is none, or `args` is no tuple.
    """
    if not isinstance(event, threading.Event):
        raise ValueError(f"event must be a threading.Event, not {type(event).__name__}")
    if stop is not None and not isinstance(stop, threading.Event):
        raise ValueError(f"stop must be a threading.Event, not {type(stop).__name__}")
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}; (arg,) is one")

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls a function once for each list of arguments, in threads.

    Args:
        fn: The function.
        args_list: The arguments of each call.
        block_until_all_done: Whether to wait for the results.
        max_concurrent_executions: How many calls may run at a time.

    Returns:
        The results by the position of their arguments, without those of calls that raised (their
        tracebacks go to stderr); None if it does not wait, or there was nothing to call.
    """
    if not args_list:
        return None
    results: dict[int, Any] = {}

    def call(index: int, arguments: Sequence[Any]) -> None:
        try:
            results[index] = fn(*arguments)
        except Exception:
            traceback.print_exc()

    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)))
    for index, arguments in enumerate(args_list):
        pool.submit(call, index, arguments)
    pool.shutdown(wait=block_until_all_done)
    return results if block_until_all_done else None
