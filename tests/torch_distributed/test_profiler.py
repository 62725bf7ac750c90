"""What torch's profiler shows of the calls: an event for each, as with torch's own backends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from world import world

pytestmark = pytest.mark.ranks(2, 3, framework="horoacc.torch")

ROWS = 6  # of 2 and 3 ranks each has as many


def lists(size: int) -> list[torch.Tensor]:
    return [torch.ones(ROWS, 2) for _ in range(size)]


# By event: the call, and the shapes of its inputs.
CALLS: dict[str, tuple[Callable[[int, int], Any], Callable[[int, int], Any]]] = {
    "all_reduce": (lambda *_: dist.all_reduce(torch.ones(ROWS, 2)), lambda *_: [[ROWS, 2]]),
    "broadcast": (lambda *_: dist.broadcast(torch.ones(ROWS), 1), lambda *_: [[ROWS]]),
    "reduce": (lambda *_: dist.reduce(torch.ones(ROWS), 0), lambda *_: [[ROWS]]),
    "all_gather": (
        lambda _, size: dist.all_gather(lists(size), torch.ones(ROWS, 2)),
        lambda *_: [[ROWS, 2]],
    ),
    "all_gather_into_tensor": (
        lambda _, size: dist.all_gather_into_tensor(torch.empty(size * ROWS), torch.ones(ROWS)),
        lambda *_: [[ROWS]],
    ),
    "gather": (
        lambda me, size: dist.gather(torch.ones(ROWS, 2), None if me else lists(size)),
        lambda *_: [[ROWS, 2]],
    ),
    "scatter": (
        lambda me, size: dist.scatter(torch.ones(ROWS, 2), None if me else lists(size)),
        lambda me, size: [] if me else [[ROWS, 2]] * size,
    ),
    "reduce_scatter": (
        lambda _, size: dist.reduce_scatter(torch.ones(ROWS, 2), lists(size)),
        lambda _, size: [[ROWS, 2]] * size,
    ),
    "reduce_scatter_tensor": (
        lambda _, size: dist.reduce_scatter_tensor(torch.empty(ROWS // size), torch.ones(ROWS)),
        lambda *_: [[ROWS]],
    ),
    "all_to_all": (
        lambda _, size: dist.all_to_all(lists(size), lists(size)),
        lambda _, size: [[ROWS, 2]] * size,
    ),
    "all_to_all_single": (
        lambda *_: dist.all_to_all_single(torch.empty(ROWS), torch.ones(ROWS)),
        lambda *_: [[ROWS]],
    ),
    "barrier": (lambda *_: dist.barrier(), lambda *_: []),
}


def recorded(run: Callable[[], Any]) -> list[Any]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        run()
    return [event for event in profiler.events() if event.name.startswith(("horoacc:", "gloo:"))]


def test_collectives_and_messages_are_events() -> None:
    rank, size = world()
    for name, (call, shapes) in CALLS.items():
        (event,) = recorded(lambda call=call: call(rank, size))
        assert (event.name, event.is_async) == (f"horoacc:{name}", True)
        assert event.input_shapes == shapes(rank, size), name
        assert event.cpu_time >= 0

    def exchange() -> None:
        if rank == 0:
            dist.send(torch.ones(3), 1)
            dist.send(torch.ones(3), 1)
        elif rank == 1:
            dist.recv(torch.empty(3), 0)
            dist.recv(torch.empty(3))

    wanted = {0: ["send", "send"], 1: ["recv", "recvAnySource"]}.get(rank, [])
    events = recorded(exchange)
    assert [event.name for event in events] == [f"horoacc:{name}" for name in wanted]
    assert all(event.input_shapes == [[3]] and event.is_async for event in events)


def test_under_auto_events_have_the_name_that_the_script_knows() -> None:
    from horoacc.torch import default_backend

    world()
    with mock.patch.dict(os.environ):
        default_backend.install()
        try:
            group = dist.new_group(backend="gloo")
        finally:
            default_backend.remove()
    (event,) = recorded(lambda: dist.all_reduce(torch.ones(3), group=group))
    assert event.name == f"{dist.get_backend(group)}:all_reduce" == "gloo:all_reduce"
    assert group._get_backend(torch.device("cpu")).name() == "horoacc"
    dist.destroy_process_group(group)


def test_a_call_that_fails_has_an_event() -> None:
    rank, _ = world()
    failed = []

    def run() -> None:
        with pytest.raises(RuntimeError, match="mismatched"):
            dist.all_reduce(torch.ones(1 + rank))
        failed.append(True)

    (event,) = recorded(run)
    assert event.name == "horoacc:all_reduce" and failed
