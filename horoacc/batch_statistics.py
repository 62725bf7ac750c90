"""Statistics of a batch of which every rank has a part, for batch normalisation.

A rank's part is described by its count, mean and sum of squared deviations, which can be merged
without the cancellation that sums of squares suffer (T. Chan, G. Golub and R. LeVeque, "Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from horoacc import arrays
from horoacc.dtypes import Sum
from horoacc.process_sets import ProcessSet, global_process_set

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Of each channel of a batch, or of a part of it."""

    count: int
    """Values a channel."""
    mean: Vector
    """Shape [channels]."""
    deviation: Vector
    """Sum of the squared differences from the mean; shape [channels]."""

    @property
    def variance(self) -> Vector:
        """The mean squared difference from the mean; shape [channels]."""
        return self.deviation / self.count


def merge(parts: Any) -> Statistics:
    """Merges the statistics of parts to those of the whole.

    `parts` are float64 of shape [parts, 1 + 2 * channels]: count, means and deviations of each. A
    part that counts nothing says nothing.
    """
    parts = np.asarray(parts, np.float64)
    counts = parts[:, :1]
    means, deviations = np.split(parts[:, 1:], 2, axis=1)
    total = float(counts.sum())
    some = counts > 0
    mean = np.where(some, counts * means, 0.0).sum(0) / max(total, 1.0)
    spread = np.where(some, deviations + counts * (means - mean) ** 2, 0.0).sum(0)
    return Statistics(int(total), mean, spread)


def merge_over_ranks(own: Statistics, process_set: ProcessSet = global_process_set) -> Statistics:
    """Merges all ranks' parts to the statistics of the whole batch. A collective."""
    row = np.concatenate([[float(own.count)], own.mean, own.deviation])[None]
    return merge(arrays.allgather(row, process_set=process_set))


def sum_over_ranks(values: Vector, process_set: ProcessSet = global_process_set) -> Vector:
    """Adds up the ranks' values, of the same shape on all. A collective."""
    summed: Vector = arrays.allreduce(values, op=Sum, process_set=process_set)
    return summed
