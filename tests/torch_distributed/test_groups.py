"""Groups of torch.distributed: how they are made, and what ends them."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from world import world

pytestmark = pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")


def summed(group: dist.ProcessGroup | None, value: float) -> float:
    tensor = torch.full((3,), value)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def test_groups_of_all_shapes_go_side_by_side() -> None:
    rank, size = world()
    sets = [list(range(size)), [0], [size - 1], [0, size - 1], list(range(1, size)), [1, 0]]
    groups = [(ranks, dist.new_group(ranks)) for ranks in sets]
    # In another order on every rank: groups do not wait for each other.
    for ranks, group in groups[rank:] + groups[:rank]:
        if rank in ranks and len(ranks) == 1:
            assert summed(group, rank) == rank
    for ranks, group in groups:
        if rank in ranks:
            assert dist.get_process_group_ranks(group) == sorted(ranks)
            assert summed(group, rank) == sum(set(ranks))
            box = torch.tensor([float(rank)])
            dist.broadcast(box, src=max(ranks), group=group)
            assert box.item() == max(ranks)
            dist.destroy_process_group(group)
        else:
            assert group is dist.GroupMember.NON_GROUP_MEMBER


def test_a_group_made_by_its_members_alone() -> None:
    rank, size = world()
    members = [0, size - 1]
    if rank in members:
        group = dist.new_group(members, use_local_synchronization=True)
        assert summed(group, 1.0) == 2
        dist.destroy_process_group(group)


def test_async_calls_of_two_groups_overlap() -> None:
    rank, size = world()
    first, second = dist.new_group(), dist.new_group()
    a, b = torch.ones(10), torch.ones(200_000)
    works = [
        dist.all_reduce(a, group=first if rank % 2 else second, async_op=True),
        dist.all_reduce(b, group=second if rank % 2 else first, async_op=True),
    ]
    # Crossed on purpose: each group sees one size on even ranks and the other on odd ones.
    for work in works:
        with pytest.raises(RuntimeError, match="mismatched shape"):
            work.wait()
    assert summed(first, 1.0) == summed(second, 1.0) == size
    dist.destroy_process_group(first)
    dist.destroy_process_group(second)


def test_more_groups_than_there_is_room_for_at_a_time() -> None:
    _, size = world()
    for _ in range(140):
        group = dist.new_group()
        assert summed(group, 1.0) == size
        dist.destroy_process_group(group)
        dist.barrier()


def test_a_bad_argument_is_an_error_on_every_rank_at_once() -> None:
    rank, size = world()
    group = dist.new_group()
    began = time.monotonic()
    output = torch.empty(size * 2 + (rank == 0))
    with pytest.raises(Exception, match="as many elements as the inputs") as caught:
        dist.all_gather_into_tensor(output, torch.ones(2), group=group)
    assert isinstance(caught.value, ValueError if rank == 0 else RuntimeError)
    tensor = torch.ones(2 + rank)
    with pytest.raises(RuntimeError, match=r"mismatched shape: rank 0 has \[2\], rank 1 has \[3\]"):
        dist.all_reduce(tensor, group=group)
    with pytest.raises(RuntimeError, match="mismatched data type"):
        dist.all_reduce(torch.ones(2, dtype=[torch.float32, torch.int32][rank % 2]), group=group)
    with pytest.raises(RuntimeError, match="mismatched root"):
        dist.broadcast(torch.ones(2), src=rank, group=group)
    assert time.monotonic() - began < 30
    assert summed(group, 1.0) == size
    dist.destroy_process_group(group)


def test_rows_that_do_not_fit_are_an_error_on_every_rank() -> None:
    rank, size = world()
    rows = torch.ones(size)
    for one in (0, size - 1):  # the first and the last that is compared
        take = [1] * size
        if rank == one:
            take[size - 1 - one] = 2
        output = torch.zeros(sum(take))
        match = f"rank {size - 1 - one} sends 1 rows to rank {one}, whose output has room for 2"
        with pytest.raises(RuntimeError, match=match):
            dist.all_to_all_single(output, rows, take, [1] * size)
        assert output.sum() == 0
        with pytest.raises(RuntimeError, match="mismatched splits"):
            dist.all_to_all_single(torch.zeros(2 * size), rows, [2] * size, [1] * size)
        dist.all_to_all_single(rows.clone(), rows)  # the group goes on


@pytest.mark.parametrize(
    "how",
    ["sync", *(pytest.param(how, marks=pytest.mark.only_ranks(3))
               for how in ("async", "future", "wait"))],
)  # fmt: skip
def test_a_timeout_names_who_is_missing_and_ends_the_group(how: str) -> None:
    rank, size = world()
    group = dist.new_group(timeout=timedelta(seconds=600 if how == "wait" else 1))
    missing = size - 1
    dist.barrier()  # who is slow must not be taken for missing
    began = time.monotonic()
    if rank != missing:
        tensor = torch.ones(4)
        with pytest.raises(
            RuntimeError, match=rf"Timed out .* rank\(s\) {missing}|gave up waiting"
        ):
            work = dist.all_reduce(tensor, group=group, async_op=how != "sync")
            if how == "future":
                work.get_future().wait()
            elif how == "wait":
                work.wait(timedelta(seconds=1))
            elif work is not None:
                work.wait()
        assert 0.9 < time.monotonic() - began < 30
    dist.barrier()
    # From here on the group is over, on the rank that was missing too.
    with pytest.raises(RuntimeError, match="gave up waiting"):
        summed(group, 1.0)
    with pytest.raises(RuntimeError, match="gave up waiting"):
        dist.recv(torch.ones(1), (rank + 1) % size, group=group)
    assert summed(None, 1.0) == size
    dist.destroy_process_group(group)


def test_a_recv_that_nobody_serves_times_out() -> None:
    rank, size = world()
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"recv.from.1.tag.3.*within 0.3 s.*rank\(s\) 1"):
            dist.recv(torch.ones(1), 1, group=group, tag=3)
    dist.barrier()
    if rank == 1:
        with pytest.raises(RuntimeError, match="rank 0 gave up waiting"):
            dist.send(torch.ones(100_000), 0, group=group)
    assert summed(None, 1.0) == size
    dist.destroy_process_group(group)


def test_monitored_barrier_names_every_rank_that_is_missing() -> None:
    """And says so in Gloo's words, too."""
    rank, size = world()
    names = ", ".join(str(of) for of in range(1, size))
    told = {False: "Rank 1", True: f"Ranks {names}" if size > 2 else "Rank 1"}
    for wait_all_ranks, whom in told.items():
        group = dist.new_group()
        if rank == 0:
            for_ms = "after 300 ms. " + whom + " failed to pass monitoredBarrier in 300 ms"
            said = (
                rf"Rank 0 timed out in monitoredBarrier {for_ms}.* Timed out .*rank\(s\) {names}$"
            )
            with pytest.raises(RuntimeError, match=said):
                dist.monitored_barrier(group, timedelta(seconds=0.3), wait_all_ranks)
        dist.barrier()
        dist.destroy_process_group(group)
    if size < 3:
        return
    group = dist.new_group()
    if rank != 1:
        said = r"Rank 1 failed to pass monitoredBarrier in 1000 ms\. "
        if rank > 0:
            said += f"Rank {rank} successfully reached monitoredBarrier, but received errors "
        with pytest.raises(RuntimeError, match=said):
            dist.monitored_barrier(group, timedelta(seconds=1))
    dist.barrier()
    dist.destroy_process_group(group)


def test_nothing_but_a_monitored_barrier_comes_to_one() -> None:
    rank, size = world()
    group = dist.new_group()
    for other in (dist.barrier, lambda group: summed(group, 1.0)):
        with pytest.raises(
            RuntimeError, match="rank 0 has monitored_barrier, rank 1 has "
        ) as error:
            if rank == 0:
                dist.monitored_barrier(group, timedelta(seconds=60))
            else:
                other(group=group)
        assert ("allreduce" in str(error.value)) == (other is not dist.barrier)
        # Nothing is out of step afterwards.
        dist.monitored_barrier(group, timedelta(seconds=60))
        assert summed(group, 1.0) == size
    dist.destroy_process_group(group)


def test_leaving_a_group_ends_what_others_wait_for_in_it() -> None:
    rank, size = world()
    group = dist.new_group()
    waits = dist.irecv(torch.ones(1), 1, group=group) if rank == 0 else None
    if rank > 1:
        dist.destroy_process_group(group)
    dist.barrier()  # that others have left before must not hide that rank 1 leaves
    if rank == 1:
        dist.destroy_process_group(group)
    elif rank == 0:
        with pytest.raises(RuntimeError, match="rank 1 has"):
            waits.wait()
        with pytest.raises(RuntimeError, match=f"rank [1-{size - 1}] has"):
            summed(group, 1.0)
        dist.destroy_process_group(group)
    assert summed(None, 1.0) == size


def test_destroyed_and_made_again() -> None:
    rank, size = world()
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("cpu:horoacc,cuda:horoacc")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert summed(None, 1.0) == size
    dist.destroy_process_group()
    dist.init_process_group("horoacc")
    assert summed(dist.new_group(), 2.0) == 2 * size
