"""The process-wide state: one engine, where this process stands, and what a fork does to it.

The core has no globals; this module holds the one engine of the process. The engine object is
never freed, only shut down, because tensors may live in its memory for as long as they please.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from horoacc import process_sets as sets
from horoacc import start
from horoacc.errors import Aborted, NotInitialized

if TYPE_CHECKING:
    from horoacc._core import Engine

# Horovod's text, which scripts match.
_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
_FORKED = (
    "this process was forked from one that called hvd.init(): its engine belongs to the parent. "
    "Collectives work in the parent only; a child may call hvd.rank() and hvd.size(), or start "
    "with multiprocessing's 'spawn' method and call hvd.init() itself."
)


class Position(NamedTuple):
    """Where a process stands in the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class _State:
    """What `init()` made. `engine` is None before it, after `shutdown()`, and in a child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engine: Engine | None = None
        self.position: Position | None = None
        self.bootstrap = "none"
        self.forked = False
        self.at_exit = False
        self.last_engine: Engine | None = None
        self.before_shutdown: list[Callable[[], None]] = []


_state = _State()


def engine() -> Engine:
    """Gives the engine of this process.

    Returns:
        The engine.

    Raises:
        NotInitialized: There is none. It is a ValueError.
        Aborted: The process is a forked child of one that has an engine.
    """
    found = _state.engine
    if found is None:
        _refuse()
    return found


def _refuse() -> NoReturn:
    if _state.forked:
        raise Aborted(_FORKED)
    raise NotInitialized(_NOT_INITIALIZED)


def _position() -> Position:
    found = _state.position
    if found is None:
        raise NotInitialized(_NOT_INITIALIZED)
    return found


def init(
    comm: Any = None, process_sets: Sequence[sets.ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Joins the job. Every rank calls it; a second call only adds the process sets.

    Without a launcher the process is a job of size 1.

    Args:
        comm: None for all processes of the job, a list of their ranks, or an mpi4py communicator
            that holds the processes of this job.
        process_sets: Process sets to register, the same on every rank. "dynamic" is accepted for
            Horovod's sake: sets can always be added later.

    Raises:
        ConfigError: The environment or a setting cannot work.
        Timeout: Some ranks did not come; the message names them.
        ValueError: A process set is a duplicate, or its ranks do not exist.
    """
    with _state.lock:
        if _state.forked:
            raise Aborted(_FORKED)
        if _state.engine is None:
            made, bootstrap = start.engine(comm)
            # One reference more than Python knows of: see the head of this module.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            _state.engine = _state.last_engine = made
            _state.position = Position(*made.placement)
            _state.bootstrap = bootstrap
            sets.reset(_state.position.size)
            if not _state.at_exit:
                _state.at_exit = True
                atexit.register(_leave)
        if process_sets is not None and not isinstance(process_sets, str):
            for process_set in process_sets:
                sets.add_process_set(process_set)
        elif isinstance(process_sets, str) and process_sets.lower() != "dynamic":
            raise ValueError(
                "process_sets must be a list of process sets, 'dynamic' or None, "
                f"but is {process_sets!r}."
            )


def shutdown() -> None:
    """Leaves the job and joins the engine's threads. What is in flight ends with `Aborted`.

    `init()` may be called again afterwards. A second call, and a call in a forked child, do
    nothing.
    """
    with _state.lock:
        if _state.engine is not None:
            while _state.before_shutdown:
                _state.before_shutdown.pop()()
        made, _state.engine = _state.engine, None
        if not _state.forked:
            _state.position = None
        sets.reset(None)
    if made is not None:
        made.shutdown()


def _leave() -> None:
    """Ends this process's part in the job when Python exits.

    Whoever initialised MPI finalises it. After an uncaught exception nobody does: the other ranks
    may never come to the call, and mpirun has to see that this rank failed.
    """
    failed = getattr(sys, "last_value", None) is not None
    try:
        shutdown()
    finally:
        made = _state.last_engine
        if failed and (mpi4py := sys.modules.get("mpi4py")) is not None:
            mpi4py.rc.finalize = False
        if made is not None and not _state.forked and not failed:
            made.finalize_mpi()


def bootstrap() -> str:
    """Says how the ranks of this job met.

    Returns:
        "mpi", "tcp" or "none"; "" before `init()`.
    """
    return _state.bootstrap if _state.engine is not None else ""


def before_shutdown(action: Callable[[], None]) -> None:
    """Has something done once, just before the engine is shut down.

    Args:
        action: What to do.
    """
    _state.before_shutdown.append(action)


def is_initialized() -> bool:
    """Says whether `init()` was called and `shutdown()` was not.

    Returns:
        True between the two.
    """
    return _state.engine is not None


def rank() -> int:
    """Gives this process's rank, from 0 to `size() - 1`.

    Returns:
        The rank. It stays known in a forked child.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().rank


def size() -> int:
    """Gives the number of ranks of the job.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().size


def local_rank() -> int:
    """Gives this process's rank among those on its host.

    Returns:
        The local rank.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().local_rank


def local_size() -> int:
    """Gives the number of ranks on this host.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().local_size


def cross_rank() -> int:
    """Gives the rank of this host among the hosts that have this local rank.

    Returns:
        The cross rank.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().cross_rank


def cross_size() -> int:
    """Gives the number of hosts that have this local rank.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return _position().cross_size


def is_homogeneous() -> bool:
    """Says whether every host has the same number of ranks.

    Returns:
        True if so.

    Raises:
        ValueError: `init()` was not called.
    """
    position = _position()
    return position.size == position.local_size * position.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts to write a Chrome trace of what the engine does.

    Args:
        file_path: Where to. The file is a valid trace at every moment.
        mark_cycles: Also mark the engine's rounds.

    Raises:
        ValueError: `init()` was not called.
    """
    engine().start_timeline(os.fspath(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Stops writing the trace.

    Raises:
        ValueError: `init()` was not called.
    """
    engine().stop_timeline()


def counters() -> dict[str, int]:
    """Reads what the engine counted since `init()`.

    `arena_bytes`, `window_bytes` and `staged_bytes` say how many bytes were reduced in place in
    shared memory, through windows that stay in cache, and through staging memory.

    Returns:
        The counters by name.

    Raises:
        ValueError: `init()` was not called.
    """
    return engine().counters()


def _before_fork() -> None:
    if _state.last_engine is not None and not _state.forked:
        _state.last_engine.before_fork()


def _after_fork_in_parent() -> None:
    if _state.last_engine is not None and not _state.forked:
        _state.last_engine.after_fork_in_parent()


def _forget_in_child() -> None:
    if _state.last_engine is not None and not _state.forked:
        _state.last_engine.after_fork_in_child()
    # The engine's threads are not in the child and its locks may be held: never touch it again.
    # The position stays, for a DataLoader worker that asks for its rank.
    _state.lock = threading.RLock()
    if _state.last_engine is not None:
        _state.engine = None
        _state.forked = True


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_forget_in_child
)
