"""Collectives of Python objects. They travel pickled, behind a 64-bit length; object_macs.py."""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from horoacc import arrays, process
from horoacc.collectives.calls import ALLGATHER, BROADCAST, member_names, part_name
from horoacc.collectives.validation_errors import validating
from horoacc.process_sets import ProcessSet, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


def _pickled(obj: Any) -> npt.NDArray[np.uint8]:
    """Pickles into memory that can be written to, as a broadcast needs it, with room for a MAC."""
    file = io.BytesIO()
    cloudpickle.dump(obj, file)
    file.write(process.object_calls().room)
    return np.frombuffer(file.getbuffer(), np.uint8)


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
    length = np.array([payload.size], np.int64)
    arrays.broadcast_(length, root_rank, first, process_set)
    call = process.object_calls().begin("broadcast", name, process_set.ranks or ())
    if is_root:
        call.seal(root_rank, payload)
    else:
        payload = np.empty(int(length[0]), np.uint8)
    arrays.broadcast_(payload, root_rank, part_name(name, "data"), process_set)
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
    lengths = arrays.allgather(np.array([payload.size], np.int64), first, process_set)
    ranks = process_set.ranks or []
    call = process.object_calls().begin("allgather", name, ranks)
    call.seal(process.position().rank, payload)
    gathered = arrays.allgather(payload, part_name(name, "data"), process_set)
    del payload  # it may be long, and so may be the objects of the other ranks
    ends = np.cumsum(lengths)
    return [
        cloudpickle.loads(call.open(rank, gathered[end - length : end]))
        for rank, end, length in zip(ranks, ends, lengths, strict=True)
    ]
