"""Point-to-point calls of torch.distributed over the backend "horoacc"."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from world import same, values, world

pytestmark = pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")

COUNTS = [0, 1, 1000, 16384, 16385, 500_000]


@pytest.mark.parametrize("count", COUNTS)
def test_send_and_recv_round_the_ring(count: int) -> None:
    rank, size = world()
    mine = values((count,), torch.float32, rank)
    output = torch.empty(count)
    sent = dist.isend(mine, (rank + 1) % size)
    assert dist.recv(output, (rank - 1) % size) == (rank - 1) % size
    sent.wait()
    same(output, values((count,), torch.float32, (rank - 1) % size))


def test_tags_are_matched_whatever_the_order() -> None:
    rank, _ = world()
    if rank == 0:
        works = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in range(50)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in reversed(range(50)):
            output = torch.empty(3)
            dist.recv(output, 0, tag=tag)
            same(output, torch.full((3,), float(tag)))


def test_one_tag_keeps_the_order() -> None:
    rank, _ = world()
    sizes = [5, 100_000, 0, 7, 200_000, 1]
    if rank == 0:
        works = [dist.isend(torch.full((n,), float(n)), 1) for n in sizes]
        for work in works:
            work.wait()
    elif rank == 1:
        for n in sizes:
            output = torch.empty(n)
            dist.recv(output, 0)
            same(output, torch.full((n,), float(n)))


def test_receiving_from_anyone() -> None:
    rank, size = world()
    if rank == 0:
        seen = []
        for _ in range(1, size):
            output = torch.empty(2)
            source = dist.recv(output)
            same(output, torch.full((2,), float(source)))
            seen.append(source)
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.full((2,), float(rank)), 0)


def test_batches() -> None:
    rank, size = world()
    output, large = torch.empty(2, 2), torch.empty(100_000)
    following, before = (rank + 1) % size, (rank - 1) % size
    ops = [
        dist.P2POp(dist.irecv, output, before),
        dist.P2POp(dist.irecv, large, before, tag=1),
        dist.P2POp(dist.isend, torch.full((2, 2), float(rank)), following),
        dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), following, tag=1),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(output, torch.full((2, 2), float(before)))
    same(large, torch.full((100_000,), float(before)))


def test_views_that_are_not_contiguous() -> None:
    rank, _ = world()
    if rank == 0:
        dist.send(torch.arange(12.0).reshape(3, 4).t(), 1)
    elif rank == 1:
        output = torch.zeros(4, 6)
        dist.recv(output[:, ::2], 0)
        same(output[:, ::2], torch.arange(12.0).reshape(3, 4).t())
        same(output[:, 1::2], torch.zeros(4, 3))


def test_a_small_send_needs_no_receive_yet() -> None:
    rank, _ = world()
    if rank == 0:
        dist.send(torch.ones(16384), 1, tag=9)  # 64 KiB
        dist.send(torch.zeros(1), 1, tag=10)
        waits = dist.isend(torch.ones(16385), 1, tag=11)
        assert not waits.is_completed()
        dist.barrier()
        waits.wait()
    elif rank == 1:
        flag, small, large = torch.ones(1), torch.empty(16384), torch.empty(16385)
        dist.recv(flag, 0, tag=10)
        dist.barrier()
        dist.recv(large, 0, tag=11)
        dist.recv(small, 0, tag=9)
        assert small.sum() == 16384 and large.sum() == 16385
    else:
        dist.barrier()


def test_sizes_that_differ_are_an_error_on_both() -> None:
    rank, _ = world()
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"400000 bytes.*receives one of 8"):
            dist.send(torch.ones(100_000), 1)
    elif rank == 1:
        with pytest.raises(RuntimeError, match="rank 0 sends a message of 400000 bytes"):
            dist.recv(torch.empty(2), 0)
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        output = torch.empty(2)
        dist.recv(output, 0)
        assert output.tolist() == [1, 1]


@pytest.mark.only_ranks(2)
def test_a_recv_that_waits_burns_no_core() -> None:
    rank, _ = world()
    if rank == 0:
        time.sleep(1.0)
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        before = sum(os.times()[:2])
        dist.recv(torch.empty(1), 0)
        assert sum(os.times()[:2]) - before < 0.25


def test_messages_and_collectives_go_side_by_side() -> None:
    rank, size = world()
    output = torch.empty(300_000)
    waits = dist.irecv(output, (rank - 1) % size)
    total = torch.ones(1000)
    dist.all_reduce(total)
    dist.send(torch.full((300_000,), float(rank)), (rank + 1) % size)
    waits.wait()
    same(total, torch.full((1000,), float(size)))
    same(output, torch.full((300_000,), float((rank - 1) % size)))
