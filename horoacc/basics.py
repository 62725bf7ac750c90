"""Joining and leaving the job, and questions about it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from horoacc import handles, process
from horoacc import process_sets as sets
from horoacc.monitor import door, exporter, metrics
from horoacc.process import bootstrap as bootstrap
from horoacc.process import engine as engine
from horoacc.start import World

__all__ = [
    "counters", "cross_rank", "cross_size", "is_homogeneous", "is_initialized", "local_rank",
    "local_size", "metrics", "rank", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip
"""The names that all frontends export as they are. Each has an `init` of its own."""


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
        ValueError: A process set is a duplicate, or its ranks do not exist. None of the sets is
            registered then, and a first call has not joined the job.
    """
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(
            "process_sets must be a list of process sets, 'dynamic' or None, "
            f"but is {process_sets!r}."
        )
    first = False
    added: list[sets.ProcessSet] = []
    try:
        with process.lock():
            first = _enter(comm)
            for process_set in () if isinstance(process_sets, str) else process_sets or ():
                added.append(sets.add_process_set(process_set))
    except Exception:
        with contextlib.suppress(Exception):  # the job may be over
            if first:
                shutdown()
            for process_set in () if first else reversed(added):
                sets.remove_process_set(process_set)
        raise


def _enter(comm: Any, world: World | None = None) -> bool:
    if not process.enter(comm, world):
        return False
    sets.reset(process.position().size)
    handles.forget()
    process.at_exit(shutdown)
    try:
        exporter.start()
        door.start()
    except Exception:
        shutdown()
        raise
    return True


def join_world(world: World) -> None:
    """Joins the job that torch.distributed knows, unless this process is in one already.

    `world` has a store through which the ranks can meet if no launcher says how. Errors are those
    of `init`.
    """
    with process.lock():
        _enter(None, world)


def shutdown() -> None:
    """Leaves the job and joins the engine's threads. Calls in flight end with `Aborted`.

    `init()` may be called again afterwards. A second call, and a call in a forked child, do
    nothing.
    """
    with process.lock():
        made = process.leave()
        if made is not None and process.is_elastic():
            sets.carry()
        sets.reset(None)
    if made is not None:
        made.shutdown()
        process.left(made)


def is_initialized() -> bool:
    """Says whether `init()` was called and `shutdown()` was not.

    Returns:
        True between the two.
    """
    return process.entered()


def rank() -> int:
    """Gives this process's rank, from 0 to `size() - 1`.

    Returns:
        The rank. It stays known in a forked child.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().rank


def size() -> int:
    """Gives the number of ranks of the job.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().size


def local_rank() -> int:
    """Gives this process's rank among those on its host.

    Returns:
        The local rank.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().local_rank


def local_size() -> int:
    """Gives the number of ranks on this host.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().local_size


def cross_rank() -> int:
    """Gives the rank of this host among the hosts that have this local rank.

    Returns:
        The cross rank.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().cross_rank


def cross_size() -> int:
    """Gives the number of hosts that have this local rank.

    Returns:
        The number.

    Raises:
        ValueError: `init()` was not called.
    """
    return process.position().cross_size


def is_homogeneous() -> bool:
    """Says whether every host has the same number of ranks.

    Returns:
        True if so.

    Raises:
        ValueError: `init()` was not called.
    """
    place = process.position()
    return place.size == place.local_size * place.cross_size


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts to write a Chrome trace of the engine's work.

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
    """Reads the engine's counters since `init()`.

    Of allreduces, `arena_bytes` were reduced in place in shared memory and `window_bytes` through
    windows that stay in cache. `staged_bytes` were copied to staging memory first, for any
    collective; bytes that other collectives move are not counted. Of data between hosts over TCP,
    `data_connections` came into being; `data_send_calls` and `data_receive_calls` are the system
    calls on them. `plan_rounds` are the steps whose gradients needed one call a bucket,
    `plan_granted` the calls of these, and of TensorFlow's gradients, that began without a message
    to other hosts (`plan_dropped` of them were dropped), and `plan_unlocks_…` say why such rounds
    ended (docs/architecture.md, Locked plans). `tuned_…` are settings as autotune has them now,
    `autotune_trials` its trials so far and `autotune_kept` those whose values were kept.

    Returns:
        The counters by name.

    Raises:
        ValueError: `init()` was not called.
    """
    return engine().counters()
