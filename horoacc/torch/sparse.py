"""Allreduce of sparse tensors: what the ranks' non-zeros are is gathered, not reduced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horoacc.calls import part_name
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
        tensor: A COO tensor; the ranks' may have different non-zeros.
        name: The same on all ranks.
        op: Average or Sum.
        process_set: The ranks that take part.

    Returns:
        A function to call for the reduced sparse tensor; `synchronize` takes it too.

    Raises:
        ValueError: An argument cannot work.
    """
    if op not in (Average, Sum):
        raise ValueError("A sparse tensor can be averaged or summed, nothing else.")
    if not tensor.is_coalesced():
        tensor = tensor.coalesce()
    indices = allgather_async(
        tensor._indices().t().contiguous(), part_name(name, "indices"), process_set
    )
    values = allgather_async(tensor._values().contiguous(), part_name(name, "values"), process_set)
    size = process_set.size() or 1

    def finish() -> torch.Tensor:
        gathered = synchronize(values)
        where = synchronize(indices)
        if op == Average:
            gathered = gathered / size
        return torch.sparse_coo_tensor(where.t(), gathered, tensor.shape)

    return finish
