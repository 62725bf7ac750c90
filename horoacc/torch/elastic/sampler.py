"""A sampler that knows which samples of an epoch have been processed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from horoacc import basics


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Parts a dataset among the ranks, and the rest of it again after a reset.

    Put it into a `TorchState`, call `record_batch` after each batch, and `set_epoch` at the end of
    each epoch.

    Attributes:
        epoch: The epoch, which is part of the seed.
        processed_num: How many samples of it all ranks together have processed.
        remaining_indices: The dataset's indices that were not processed at the last reset.
        num_replicas: The number of ranks.
        rank: This rank.
        num_samples: How many indices each rank gets.
        total_size: How many all ranks get: some twice if they cannot be parted evenly.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Parts a dataset; `init()` must have been called.

        Args:
            dataset: Anything with a length, which must not change.
            shuffle: Whether each epoch has an order of its own; the same on all ranks.
            seed: The same on all ranks.

        Raises:
            ValueError: `init()` was not called.
            TypeError: The dataset has no length.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.remaining_indices: list[int] = []
        self.num_replicas = 0
        self.rank = 0
        self.num_samples = 0
        self.total_size = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, of which nothing has been processed.

        Args:
            epoch: Its number.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has processed a batch of this epoch.

        Args:
            batch_idx: The batch's number; not needed, because samples are counted.
            batch_size: How many samples each rank's batch has.
        """
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """Notes that every rank has processed as many samples of this epoch as this one.

        Args:
            indices: The indices that this rank has processed.
        """
        self.processed_num += len(indices) * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Gives the argument of `load_state_dict`.

        Returns:
            The epoch and how much of it is processed.
        """
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes to another point of the training, and parts the rest.

        Args:
            state_dict: A result of `state_dict`, here or in a job of another size.

        Raises:
            KeyError: It has no "epoch" or no "processed_num".
        """
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Parts the rest of the epoch among the present ranks."""
        self.num_replicas = basics.size()
        self.rank = basics.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's indices: every `num_replicas`-th of those that remained at the reset."""
        left = len(self.remaining_indices)
        # Filled up from the front, several times if fewer samples than ranks remain.
        for position in range(self.rank, self.total_size, self.num_replicas):
            yield self.remaining_indices[position % left]

    def __len__(self) -> int:
        return self.num_samples
