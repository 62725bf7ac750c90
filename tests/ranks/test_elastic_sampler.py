"""The elastic sampler: each sample of an epoch once, whatever happens in it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import horoacc.torch as hvd
from horoacc.errors import HorovodInternalError


def both(*sizes: int) -> Any:
    return pytest.mark.ranks(*sizes, framework="horoacc.torch")


def order(length: int, seed: int, shuffle: bool) -> list[int]:
    indices = list(range(length))
    if shuffle:
        random.Random(seed).shuffle(indices)
    return indices


@both(1, 2, 3, 4)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [12, 13, 2])
def test_sampler_parts_what_is_left(ranks: int, length: int, shuffle: bool) -> None:
    sampler = hvd.elastic.ElasticSampler(range(length), shuffle=shuffle, seed=3)
    everyone = hvd.allgather_object(list(sampler))
    each = math.ceil(length / ranks)
    assert {len(part) for part in everyone} == {each} and len(sampler) == each
    assert (sampler.num_samples, sampler.total_size) == (each, each * ranks)
    dealt = [part[turn] for turn in range(each) for part in everyone]
    assert dealt[:length] == order(length, 3, shuffle)
    assert set(dealt) == set(range(length))
    # One sample a rank is processed, then the ranks part what is left.
    sampler.record_batch(0, 1)
    assert sampler.processed_num == ranks
    assert list(sampler) == everyone[hvd.rank()]  # not before a reset
    sampler.reset()
    left = order(length, 3, shuffle)[ranks:]
    assert sampler.remaining_indices == left
    rest = [index for part in hvd.allgather_object(list(sampler)) for index in part]
    assert set(rest) == set(left)
    sampler.record_indices(list(sampler))
    saved = sampler.state_dict()
    assert saved == {"epoch": 0, "processed_num": ranks + ranks * len(sampler)}
    sampler.set_epoch(1)
    assert (sampler.processed_num, len(sampler)) == (0, each)
    assert sampler.remaining_indices == order(length, 4, shuffle)
    sampler.load_state_dict(saved)
    assert (sampler.epoch, list(sampler)) == (0, [])
    with pytest.raises(KeyError, match="epoch"):
        sampler.load_state_dict({})
    with pytest.raises(TypeError, match="len"):
        hvd.elastic.ElasticSampler(iter(range(length)))


@both(1, 2, 3, 4)
def test_sampler_in_a_state(ranks: int) -> None:
    """A loader over the sampler sees each sample of an epoch once, also after going back."""
    dataset = torch.utils.data.TensorDataset(torch.arange(12 * ranks))
    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    committed: list[int] = []
    failed: list[int] = []

    def batches(state: Any) -> Iterator[list[int]]:
        pending: list[int] = []
        for number, (batch,) in enumerate(loader):
            hvd.allreduce(torch.ones(1), name="batch")
            pending += batch.tolist()
            state.sampler.record_batch(number, len(batch))
            if len(pending) == 4:
                state.commit()
                yield pending
                pending = []
            if number == 2 and not failed:
                failed.append(1)
                raise HorovodInternalError("as if a collective had failed")

    @hvd.elastic.run
    def train(state: Any) -> None:
        for indices in batches(state):
            committed.extend(indices)
        state.sampler.set_epoch(state.sampler.epoch + 1)

    state = hvd.elastic.TorchState(sampler=sampler)
    train(state)
    seen = [index for part in hvd.allgather_object(committed) for index in part]
    assert sorted(seen) == list(range(12 * ranks)) and failed == [1]
    assert (sampler.epoch, sampler.processed_num) == (1, 0)
