"""torch.distributed over ranks that do not all share memory, with the bodies of one host."""

from __future__ import annotations

import pytest
import test_group_collectives as collectives
import test_groups as groups
import test_messages as messages
import torch
import torch.distributed as dist
from paths import MPIRUNS, has_plugin
from world import world

import horoacc.torch as hvd

SHARED_HOSTS = [
    pytest.param({"HOROACC_SIMULATED_HOSTS": hosts}, id=hosts, marks=pytest.mark.only_ranks(ranks))
    for hosts, ranks in (("2+2", 4), ("2+1", 3))
]
# One host for each rank, and MPI for control and data.
ELSEWHERE = [
    pytest.param({"HOROACC_SIMULATED_HOSTS": "1+1+1"}, id="1+1+1", marks=pytest.mark.only_ranks(3)),
    pytest.param(
        {"HOROACC_SIMULATED_HOSTS": "2+2", "HOROACC_CONTROL": "mpi",
         "HOROACC_TEST_MPIRUN": str(MPIRUNS["openmpi"])},
        id="2+2-openmpi",
        marks=[pytest.mark.only_ranks(4),
               pytest.mark.skipif(not has_plugin("openmpi"), reason="Open MPI has no plug-in")],
    ),
]  # fmt: skip
pytestmark = [pytest.mark.ranks(3, 4, framework="horoacc.torch")]
shared_hosts = pytest.mark.parametrize("env", SHARED_HOSTS)
everywhere = pytest.mark.parametrize("env", [*SHARED_HOSTS, *ELSEWHERE])


@everywhere
def test_messages() -> None:
    for count in messages.COUNTS:
        messages.test_send_and_recv_round_the_ring(count)
    for body in (
        messages.test_tags_are_matched_whatever_the_order,
        messages.test_one_tag_keeps_the_order,
        messages.test_receiving_from_anyone,
        messages.test_batches,
        messages.test_a_small_send_needs_no_receive_yet,
        messages.test_sizes_that_differ_are_an_error_on_both,
        messages.test_messages_and_collectives_go_side_by_side,
    ):
        world()
        dist.barrier()  # a body may receive from anyone
        body()


@shared_hosts
def test_messages_between_neighbours_use_no_socket() -> None:
    rank, _ = world()
    dist.barrier()
    if rank > 1:
        return
    before = hvd.counters()
    output = torch.empty(500_000)
    for count in [3] * 1000 + [500_000]:
        sent = dist.isend(torch.full((count,), float(rank)), 1 - rank)
        dist.recv(output[:count], 1 - rank)
        sent.wait()
        assert output[0] == 1 - rank
    after = hvd.counters()
    assert after["data_send_calls"] == before["data_send_calls"]
    # Heartbeats: less than a byte a message.
    assert after["control_bytes"] - before["control_bytes"] < 1000


@shared_hosts
def test_groups() -> None:
    groups.test_groups_of_all_shapes_go_side_by_side()
    groups.test_a_group_made_by_its_members_alone()
    groups.test_async_calls_of_two_groups_overlap()
    groups.test_a_bad_argument_is_an_error_on_every_rank_at_once()
    groups.test_rows_that_do_not_fit_are_an_error_on_every_rank()
    groups.test_leaving_a_group_ends_what_others_wait_for_in_it()


@shared_hosts
def test_time_limits() -> None:
    groups.test_a_timeout_names_who_is_missing_and_ends_the_group("sync")
    groups.test_a_recv_that_nobody_serves_times_out()


@everywhere
def test_collectives() -> None:
    for op in ("SUM", "MAX"):
        collectives.test_reduce_scatter(op)
    for count in (0, 7):
        collectives.test_reduce_gather_and_scatter(count)
    collectives.test_reduce_with_other_operations_and_types()
    collectives.test_all_gather_of_uneven_parts()
    collectives.test_all_to_all_single()
    collectives.test_reduce_scatter_coalesced_and_in_place()
    collectives.test_broadcast_moves_every_type()


@shared_hosts
def test_one_rank_of_each_host() -> None:
    """A sub-group that shares no memory at all."""
    rank, size = world()
    firsts = dist.new_group([0, 2])
    if rank in (0, 2):
        assert groups.summed(firsts, float(rank + 1)) == 4.0
    assert groups.summed(None, 1.0) == size
