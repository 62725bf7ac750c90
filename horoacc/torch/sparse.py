"""Allreduce of sparse tensors: the ranks' non-zeros are gathered, not reduced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horoacc.collectives.calls import ALLGATHER, member_names, part_name
from horoacc.collectives.validation_errors import validating
from horoacc.dtypes import Average, Sum
from horoacc.process_sets import ProcessSet, global_process_set
from horoacc.torch.ops import allgather_async, synchronize


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Starts a reduction of a sparse tensor: its values and indices are gathered.

    Args:
        tensor: A COO tensor with one sparse dimension or more. Shape and type are the same on all
            ranks, the non-zeros need not be. Not changed.
        name: The same on all ranks; None for a call that is matched by its order.
        op: Average or Sum.
        process_set: The ranks that take part.

    Returns:
        A function to call for the reduced sparse tensor, of the same shape and type and not
        coalesced; `synchronize` takes it too.

    Raises:
        ValueError: The operation is another, or the name is in use.
        HorovodInternalError: From the function or `synchronize`: the collective failed.
    """
    parts = [part_name(name, "indices"), part_name(name, "values")]
    first, second = (member_names("allgather", part)[0] for part in parts)
    # The inner validation error comes first, as the call does.
    with validating(ALLGATHER, second, process_set), validating(ALLGATHER, first, process_set):
        if op not in (Average, Sum):
            raise ValueError("A sparse tensor can be averaged or summed, nothing else.")
        if not tensor.is_coalesced():
            tensor = tensor.coalesce()
    indices = allgather_async(tensor._indices().t().contiguous(), parts[0], process_set)
    values = allgather_async(tensor._values().contiguous(), parts[1], process_set)
    size = process_set.size() or 1

    def finish() -> torch.Tensor:
        try:
            gathered = synchronize(values)
        finally:  # the names of both are free again
            where = synchronize(indices)
        if op == Average:
            gathered = gathered / size
        # Every rank has checked its own part, so torch need not; without the argument torch warns.
        return torch.sparse_coo_tensor(where.t(), gathered, tensor.shape, check_invariants=False)

    return finish
