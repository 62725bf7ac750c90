"""Collectives of Python objects. They travel pickled, behind their lengths; object_macs.py."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from horoacc import arrays, process
from horoacc.collectives.calls import ALLGATHER, BROADCAST, member_names, part_name
from horoacc.collectives.validation_errors import send_validation_error, validating
from horoacc.object_macs import ObjectCall
from horoacc.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]

_T = TypeVar("_T")


def _pickled(obj: Any) -> npt.NDArray[np.uint8]:
    """Pickles into memory that can be written to, as a broadcast needs it, with room for a MAC."""
    file = io.BytesIO()
    cloudpickle.dump(obj, file)
    file.write(process.object_calls().room)
    return np.frombuffer(file.getbuffer(), np.uint8)


def _prepared(
    prepare: Callable[[], _T], collective: int, name: str | None, process_set: ProcessSet
) -> _T:
    """Prepares a call; if that fails, also by an error of HoroACC's, all ranks hear of it."""
    try:
        return prepare()
    except Exception as error:
        text = RuntimeError(str(error) or type(error).__name__)
        send_validation_error(text, collective, name, process_set)
        raise


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends an object from one rank to all.

    Args:
        obj: The object; only the root's matters. cloudpickle must know how to pickle it.
        root_rank: The global rank that sends.
        name: The name of the call, for the timeline.
        process_set: The ranks that take part.

    Returns:
        The root's object: itself on the root, a copy elsewhere.

    Raises:
        HorovodInternalError: The collective failed.
    """
    is_root = process.position().rank == root_rank
    first = part_name(name, "size")
    with validating(BROADCAST, member_names("broadcast", first)[0], process_set):
        payload = _pickled(obj) if is_root else np.empty(0, np.uint8)
    call = ObjectCall(process.object_calls(), "broadcast", name, process_set.ranks or ())
    row = call.announce(root_rank, payload.size) if is_root else call.blank()
    arrays.broadcast_(row, root_rank, first, process_set)
    if is_root:
        call.seal(root_rank, payload)
    second = part_name(name, "data")
    if not is_root:
        payload = _prepared(
            lambda: np.empty(call.length(root_rank, row), np.uint8),
            BROADCAST, member_names("broadcast", second)[0], process_set,
        )  # fmt: skip
    arrays.broadcast_(payload, root_rank, second, process_set)
    return obj if is_root else cloudpickle.loads(call.open(root_rank, payload))


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Collects every rank's object on every rank.

    Args:
        obj: This rank's object. cloudpickle must know how to pickle it.
        name: The name of the call, for the timeline.
        process_set: The ranks that take part.

    Returns:
        The objects by rank within the process set.

    Raises:
        HorovodInternalError: The collective failed.
    """
    first = part_name(name, "size")
    with validating(ALLGATHER, member_names("allgather", first)[0], process_set):
        payload = _pickled(obj)
    me, ranks = process.position().rank, process_set.ranks or []
    call = ObjectCall(process.object_calls(), "allgather", name, ranks)
    rows = arrays.allgather(call.announce(me, payload.size), first, process_set)
    call.seal(me, payload)
    second = part_name(name, "data")
    lengths = _prepared(
        lambda: [call.length(rank, row) for rank, row in
                 zip(ranks, rows.reshape(len(ranks), -1), strict=True)],
        ALLGATHER, member_names("allgather", second)[0], process_set,
    )  # fmt: skip
    gathered = arrays.allgather(payload, second, process_set)
    del payload  # it may be long, and so may be the objects of the other ranks
    ends = itertools.accumulate(lengths)
    return [
        cloudpickle.loads(call.open(rank, gathered[end - length : end]))
        for rank, end, length in zip(ranks, ends, lengths, strict=True)
    ]
