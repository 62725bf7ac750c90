"""The process-wide state: one engine, this process's position in the job, and forks.

The core has no globals; this module holds the one engine of the process. An engine that
has been shut down is freed with its last reference, which a framework may hold. Tensors may outlive
it: they keep its memory.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from horoacc import settings, start
from horoacc.errors import Aborted, NotInitialized, ShutDown
from horoacc.object_macs import ObjectCalls
from horoacc.stacks import StackWatch

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


_NOT_ASKED: Any = object()


class _Process:
    """The result of `init()`. `engine` is None before it, after `shutdown()`, and in a child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engine: Engine | None = None
        self.position: Position | None = None
        self.object_calls: ObjectCalls | None = None  # of the engine
        self.bootstrap = "none"
        self.name = ""
        self.forked = False
        self.at_exit = False
        self.last_engine: Engine | None = None
        self.earlier: list[Engine] = []  # before the last one; tensors lie in their arenas
        self.of_parent: list[Engine] = []  # this process must not end them
        self.stacks: StackWatch | None = None
        self.before_shutdown: list[Callable[[], None]] = []
        self.tuner: Any = _NOT_ASKED  # of this engine's settings, or None


_state = _Process()


def engine() -> Engine:
    """Gives this process's engine, or raises NotInitialized, ShutDown or, in a fork, Aborted."""
    found = _state.engine
    if found is None:
        _refuse()
    return found


def _refuse() -> NoReturn:
    if _state.forked:
        raise Aborted(_FORKED)
    if _state.last_engine is not None:
        raise ShutDown(_NOT_INITIALIZED)
    raise NotInitialized(_NOT_INITIALIZED)


def object_calls() -> ObjectCalls:
    """Gives the collectives of objects of this process's engine, or raises as `engine` does."""
    if _state.object_calls is None:
        _refuse()
    return _state.object_calls


def position() -> Position:
    """Gives this process's place in the job, also in a forked child, or raises NotInitialized."""
    found = _state.position
    if found is None:
        raise NotInitialized(_NOT_INITIALIZED)
    return found


def lock() -> threading.RLock:
    """Gives the lock that a thread holds while it joins or leaves the job."""
    return _state.lock


def enter(comm: Any, world: start.World | None = None) -> bool:
    """Makes the engine of this process unless there is one, and says whether it did.

    The caller holds the lock. Arguments and errors are those of `horoacc.init`; `world` is the job
    as torch.distributed knows it, if a process group is made.
    """
    if _state.forked:
        raise Aborted(_FORKED)
    if _state.engine is not None:
        return False
    made, bootstrap, name = start.engine(comm, world)
    _state.earlier = [one for one in _engines() if not one.arena_over]
    _state.engine = _state.last_engine = made
    _state.object_calls = ObjectCalls(made.object_key)
    on_request = bool(settings.read(os.environ)["flight_dir"])
    _state.stacks = StackWatch(made, on_request)
    _state.position = Position(*(start.expected_place() or made.placement))
    _state.bootstrap = bootstrap
    _state.name = name
    _state.tuner = _NOT_ASKED
    return True


def leave() -> Engine | None:
    """Takes the engine, if there is one, out of use, to be shut down. The caller holds the lock."""
    if _state.engine is not None:
        while _state.before_shutdown:
            _state.before_shutdown.pop()()
    made, _state.engine = _state.engine, None
    if not _state.forked:
        _state.position = None
    return made


def is_elastic() -> bool:
    """Says whether this process is a worker of an elastic job, whose ranks come and go."""
    return "HOROACC_COORDINATOR" in os.environ and "HOROACC_WORKER" in os.environ


def prepares() -> bool:
    """Says whether this process has an engine of its own until it trains with an elastic job."""
    return is_elastic() and start.expected_place() is not None


def cut() -> None:
    """Ends the calls in flight, for the other ranks will not answer. Any thread may call it."""
    if (made := _state.engine) is not None:
        made.abandon()


def left(made: Engine) -> None:
    """Undoes the registrations for an engine that has been shut down."""
    made.watch_stacks(-1, -1, -1, False)
    if _state.stacks is not None and made is _state.last_engine:
        _state.stacks.close()
        _state.stacks = None


def at_exit(shutdown: Callable[[], None]) -> None:
    """Has this process leave the job when Python exits. A second call does nothing."""
    if not _state.at_exit:
        _state.at_exit = True
        atexit.register(_end, shutdown)


def _end(shutdown: Callable[[], None]) -> None:
    """Ends this process's part in the job when Python exits.

    HoroACC finalises MPI only if it initialised it, and not after an uncaught exception: the other
    ranks may never come to the call, and mpirun has to see that this rank failed. The others get no
    message then: they notice the death of this process, which so is the first rank that failed.
    """
    failed = getattr(sys, "last_value", None) is not None
    try:
        if failed:
            with _state.lock:
                made = leave()
            if made is not None:
                made.abandon()
                left(made)
        else:
            shutdown()
    finally:
        made = _state.last_engine
        if failed and (mpi4py := sys.modules.get("mpi4py")) is not None:
            mpi4py.rc.finalize = False
        if made is not None and not _state.forked and not failed:
            made.finalize_mpi()


def bootstrap() -> str:
    """Says how the ranks of this job met: "mpi", "tcp" or "none"; "" before `init()`."""
    return _state.bootstrap if _state.engine is not None else ""


def tuner(make: Callable[[], Any]) -> Any:
    """Gives the tuner of the engine's settings, or None. The first call after `init` makes it."""
    if _state.tuner is _NOT_ASKED:
        _state.tuner = make()
    return _state.tuner


def join_ended() -> None:
    """Starts the tuner anew: ranks that have joined may have made unequal numbers of steps."""
    if _state.tuner is not _NOT_ASKED and _state.tuner is not None:
        _state.tuner.join_ended()


def job_name() -> str:
    """Gives a name of this job that is alike on its ranks and on no others', or ""; see `start`."""
    return _state.name


def before_shutdown(action: Callable[[], None]) -> None:
    """Has something done once, just before the engine is shut down."""
    _state.before_shutdown.append(action)


def entered() -> bool:
    """Says whether this process has an engine, as it has between `init()` and `shutdown()`."""
    return _state.engine is not None


def _engines() -> list[Engine]:
    """Those of this process in whose arenas tensors may lie."""
    last = _state.last_engine
    return [] if last is None or _state.forked else [*_state.earlier, last]


def _before_fork() -> None:
    for made in _engines():
        made.before_fork()


def _after_fork_in_parent() -> None:
    for made in _engines():
        made.after_fork_in_parent()


def _forget_in_child() -> None:
    for made in _engines():
        made.after_fork_in_child()
    # The child has none of the engine's threads, and its locks may be held: never use it again.
    # The position stays, for a DataLoader worker that asks for its rank.
    _state.lock = threading.RLock()
    if _state.engine is None and _state.bootstrap != "mpi":
        # The parent's job was over, so the child may join one. MPI cannot be initialised again.
        _state.of_parent += _engines()
        _state.earlier, _state.last_engine = [], None
    elif _state.last_engine is not None:
        _state.engine = None
        _state.forked = True


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_forget_in_child
)
