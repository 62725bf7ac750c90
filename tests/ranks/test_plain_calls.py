"""The plain case of a call of torch is one call of C++; whatever else goes Python's way, and ranks
that go different ways meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from interruption import cancelled

import horoacc.torch as hvd
from horoacc.errors import Aborted
from horoacc.torch.tensors import TorchTensors

pytestmark = pytest.mark.ranks(2, 3, framework="horoacc.torch")

Call = Callable[..., Any]
CALLS: dict[str, Call] = {
    "allreduce": lambda x, **how: hvd.allreduce(x, **how),
    "allreduce_": lambda x, **how: hvd.allreduce_(x, **how),
    "allreduce_async": lambda x, **how: hvd.synchronize(hvd.allreduce_async(x, **how)),
    "allreduce_async_": lambda x, **how: hvd.synchronize(hvd.allreduce_async_(x, **how)),
    "grouped_allreduce": lambda x, **how: hvd.grouped_allreduce([x, x + 1], **how)[0],
    "grouped_allreduce_": lambda x, **how: hvd.grouped_allreduce_((x, x + 1), **how)[0],
    "reducescatter": lambda x, **how: hvd.reducescatter(x, **how),
    "grouped_reducescatter": lambda x, **how: hvd.grouped_reducescatter([x, x + 1], **how)[0],
    "allgather": lambda x, **how: hvd.allgather(x, **how).view(-1, 3, 2).sum(0),
    "grouped_allgather": lambda x, **how: (
        hvd.grouped_allgather([x, x + 1], **how)[0].view(-1, 3, 2).sum(0)
    ),
    "alltoall": lambda x, **how: hvd.alltoall(torch.cat([x[:1]] * hvd.size()), **how).sum(0),
    "broadcast": lambda x, **how: hvd.broadcast(x, hvd.size() - 1, **how),
    "broadcast_": lambda x, **how: hvd.broadcast_(x, hvd.size() - 1, **how),
}


class Labelled(torch.Tensor):
    """A class of the program's."""


def ones(shape: tuple[int, ...] = (3, 2)) -> torch.Tensor:
    return torch.full(shape, float(hvd.rank() + 1))


# What this rank gives, with the values of ones().
PLAIN: dict[str, Callable[[], torch.Tensor]] = {
    "dense": ones,
    "parameter": lambda: torch.nn.Parameter(ones(), requires_grad=False),
    "view": lambda: torch.stack([ones(), -ones()])[0],
    "inference": lambda: torch.inference_mode()(ones)(),
}
OTHER: dict[str, Callable[[], torch.Tensor]] = {
    "subclass": lambda: ones().as_subclass(Labelled),
    "negated": lambda: torch.complex(ones(), -ones()).conj().imag.contiguous(),
}


def reduces(call: str) -> bool:
    return "reduce" in call


def takes(call: str, name: str) -> bool:
    if name == "max":
        return "allreduce" in call
    return reduces(call) or name in ("plainly", "named")


def expected(call: str, name: str = "") -> float:
    """Every element of the result."""
    size = hvd.size()
    if call.startswith("broadcast") or name == "max":
        return size
    total = size * (size + 1) / 2
    return total if not reduces(call) or name in ("sum", "scaled") else total / size


HOW: dict[str, dict[str, Any]] = {
    "plainly": {},
    "named": {"name": "x"},
    "sum": {"op": hvd.Sum},
    "max": {"op": hvd.Max, "name": "most"},
    "scaled": {"op": hvd.Sum, "prescale_factor": 4.0, "postscale_factor": 0.25},
}


def check(call: str, given: torch.Tensor, name: str) -> None:
    got = CALLS[call](given, **HOW[name])
    assert got.unique().tolist() == [expected(call, name)]
    if "reducescatter" not in call and call != "alltoall":
        assert got.shape == given.shape
    if call.endswith("_"):
        assert got is given


@pytest.mark.parametrize("call", CALLS)
def test_plain_tensors_need_no_python(call: str) -> None:
    last = hvd.ProcessSet([hvd.size() - 1])
    hvd.add_process_set(last)
    error = AssertionError("a plain call went Python's way")
    with mock.patch.object(TorchTensors, "view", side_effect=error):
        for make in PLAIN.values():
            for name in HOW:
                if takes(call, name):
                    check(call, make(), name)
        if last.included() and "broadcast" not in call and call != "alltoall":
            assert CALLS[call](ones(), process_set=last).tolist() == ones().tolist()
    hvd.remove_process_set(last)


@pytest.mark.parametrize("call", CALLS)
def test_ranks_of_both_ways_meet(call: str) -> None:
    for make in OTHER.values():
        first = hvd.rank() == 0
        check(call, make() if first else ones(), "named")
    if reduces(call):
        factor: Any = 4 if hvd.rank() == 0 else 4.0  # an integer is no plain factor
        sums = CALLS[call](ones(), op=hvd.Sum, prescale_factor=factor, postscale_factor=0.25)
        assert sums.unique().tolist() == [expected(call, "sum")]


BAD: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "A torch.Tensor is needed, not a list": (lambda: [ones()], {}),
    "required to be contiguous": (lambda: ones((4, 3)).t(), {}),
    "sparse_allreduce_async": (lambda: ones().to_sparse(), {}),
    "complex32 is not supported": (lambda: ones().to(torch.complex32), {}),
    "There is no reduction 99": (ones, {"op": 99}),
    "bool": (lambda: ones().bool(), {}),
    "is not registered": (ones, {"process_set": hvd.ProcessSet([0])}),
}


@pytest.mark.parametrize("error", BAD)
def test_bad_arguments_are_told_in_the_same_words(error: str) -> None:
    given, how = BAD[error]
    for call in (hvd.allreduce_, hvd.allreduce_async_):
        with pytest.raises(ValueError, match=error):
            call(given(), **how)
    assert hvd.allreduce(ones(), op=hvd.Sum)[0, 0] == expected("allreduce", "sum")  # in step


def test_a_name_is_busy_until_its_handle_is_synchronized() -> None:
    tensor = ones()
    handle = hvd.allreduce_async_(tensor, name="busy")
    with pytest.raises(ValueError, match=r"allreduce\.busy.*submitted again"):
        hvd.allreduce_async_(ones(), name="busy")
    assert hvd.synchronize(handle) is tensor
    assert hvd.synchronize(handle) is None
    assert hvd.allreduce_(ones(), name="busy")[0, 0] == expected("allreduce")


def test_the_engine_keeps_what_a_dropped_call_reads() -> None:
    handles = []
    for index in range(20):
        handles.append(hvd.allreduce_async(torch.full((1000,), float(index)), op=hvd.Sum))
        torch.full((1000,), -1.0)  # would take the memory
    results = [hvd.synchronize(handle)[0].item() for handle in handles]
    assert results == [index * hvd.size() for index in range(20)]


def test_a_forked_child_is_refused() -> None:
    child = os.fork()
    if child == 0:
        try:
            hvd.allreduce_(ones())
        except Aborted as error:
            os._exit(7 if "forked" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert hvd.allreduce_(ones(), op=hvd.Sum)[0, 0] == expected("allreduce_", "sum")


@pytest.mark.parametrize("call", [call for call in CALLS if "async" not in call])
@pytest.mark.ranks(2, framework="horoacc.torch")
def test_a_signal_ends_the_wait_and_frees_the_name(call: str) -> None:
    name = f"interrupted {call}"
    if hvd.rank() == 0:
        with cancelled(KeyboardInterrupt):
            CALLS[call](ones(), name=name)
    hvd.broadcast(torch.zeros(1), 0, name="the signal came")
    if hvd.rank() == 1:
        assert CALLS[call](ones(), name=name).unique().tolist() == [expected(call)]
    hvd.barrier()
    for _ in range(2):
        assert CALLS[call](ones(), name=name).unique().tolist() == [expected(call)]
