"""Locked plans of gradients: the bits of training are those without, whatever the ranks do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import training
from paths import only_ranks, over_mpi
from torch import nn

import horoacc.torch as hvd
from horoacc.torch import gradient_hooks
from horoacc.torch.parameter_hooks import take_off

# Buckets of several tensors, and several buckets.
SMALL = {"HOROACC_FUSION_THRESHOLD": "50000", "HOROACC_PLAN_ROUNDS": "2"}
LOCKS_AT = 4  # the first step in which nothing is negotiated for each tensor
STEPS = 12

# Every rank on a host of its own.
HOSTS = {"HOROACC_SIMULATED_HOSTS": "each", "HOROACC_REDUCTION": "canonical"}
PATHS = [pytest.param({}, id="plain"), pytest.param(HOSTS, id="hosts")]
and_on_hosts = pytest.mark.parametrize("env", PATHS)
# A library of MPI carries runs that hosts begin by themselves, and takes those that are dropped.
OVER_MPI = [
    over_mpi("openmpi", "hosts", HOSTS | {"HOROACC_CONTROL": "mpi"}, only_ranks(2, 4)),
    over_mpi("mpich", "hosts", HOSTS | {"HOROACC_CONTROL": "mpi"}, only_ranks(2)),
]
and_over_mpi = pytest.mark.parametrize("env", [*PATHS, *OVER_MPI])
pytestmark = pytest.mark.ranks(2, 3, 4, framework="horoacc.torch", env=SMALL)


def plan_counters() -> dict[str, int]:
    return {
        name.removeprefix("plan_"): value
        for name, value in hvd.counters().items()
        if name.startswith("plan_")
    }


class Counted:
    """What the counters of plans have gone up by."""

    def __enter__(self) -> Counted:
        self._before = plan_counters()
        return self

    def __exit__(self, *_: object) -> None:
        self.now = {name: value - self._before[name] for name, value in plan_counters().items()}
        self.unlocks = {
            name.removeprefix("unlocks_"): value
            for name, value in self.now.items()
            if name.startswith("unlocks_") and value
        }


Train = Callable[[nn.Module, Any, list[tuple[torch.Tensor, torch.Tensor]]], None]


def same_bits_unlocked(train: Train, model: Callable[[], nn.Module] = training.network) -> Counted:
    """Trains twice, once with hooks in Python, which have no plan; gives what the plan counted."""
    results = []
    create = gradient_hooks.create
    counted = Counted()
    for native in (False, True):
        gradient_hooks.create = create if native else lambda *_: None
        try:
            trained = model()
            optimizer = training.wrapped(trained)
            with counted:
                train(trained, optimizer, training.own_batches(STEPS))
        finally:
            gradient_hooks.create = create
        results.append(training.bits(trained))
        assert len(set(hvd.allgather_object(results[-1]))) == 1
    assert results[0] == results[1]
    return counted


def backward(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()


@and_on_hosts
def test_locks_and_stays_locked() -> None:
    counted = same_bits_unlocked(training.steps)
    assert counted.now["locks"] == 1
    assert counted.now["rounds"] == STEPS - LOCKS_AT
    assert not counted.unlocks


@and_on_hosts
def test_a_locked_step_is_one_call_a_bucket() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    training.steps(model, optimizer, training.own_batches(LOCKS_AT))
    before = hvd.counters()
    training.steps(model, optimizer, training.own_batches(3))
    after = hvd.counters()
    calls = (after["submissions"] - before["submissions"]) / 3
    # A tensor of more than the threshold is a bucket of its own.
    assert 1 < calls < len(list(model.parameters()))
    assert after["plan_rounds"] - before["plan_rounds"] == 3


def steps_without_messages() -> None:
    """Trains a net of many small layers, whose locked steps send nothing to other hosts."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 64), *(nn.Linear(64, 64) for _ in range(100)))
    optimizer = training.wrapped(model)
    # The first locked step goes through the root; hosts may have had another number in mind first.
    training.steps(model, optimizer, training.own_batches(LOCKS_AT + 3))
    before = hvd.counters()
    sent = []
    for _ in range(20):
        messages = hvd.counters()["control_messages"]
        training.steps(model, optimizer, training.own_batches(2))
        sent.append(hvd.counters()["control_messages"] - messages)
    after = hvd.counters()
    assert min(sent) == 0, "a sign of life a second is all that a host sends"
    assert after["plan_rounds"] - before["plan_rounds"] == 40
    calls = after["submissions"] - before["submissions"]
    assert after["plan_granted"] - before["plan_granted"] == calls
    assert after["plan_dropped"] == 0


# All gradients in one bucket.
DEEP = {"HOROACC_FUSION_THRESHOLD": "100000000"}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("env", [HOSTS | DEEP, *OVER_MPI])
def test_a_deep_net_sends_no_message_between_hosts() -> None:
    steps_without_messages()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("env", [HOSTS | DEEP | {"HOROACC_SIMULATED_HOSTS": "2+2"}])
def test_a_deep_net_sends_no_message_between_hosts_of_two_ranks() -> None:
    steps_without_messages()


@pytest.mark.parametrize("env", [{"HOROACC_PLAN_ROUNDS": "0"}])
def test_never_locks() -> None:
    counted = same_bits_unlocked(training.steps)
    assert counted.now["locks"] == 0


def test_zero_grad_in_place_and_none() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for step, batch in enumerate(batches):
            optimizer.zero_grad(set_to_none=step % 3 == 0)
            backward(model, batch)
            with pytest.raises(AssertionError, match="zero_grad"):
                optimizer.zero_grad()
            optimizer.step()

    counted = same_bits_unlocked(train)
    assert counted.now["rounds"] == STEPS - LOCKS_AT


def test_a_second_gradient_raises_and_the_step_ends() -> None:
    model = training.network()
    optimizer = training.wrapped(model)
    for step, batch in enumerate(training.own_batches(STEPS)):
        optimizer.zero_grad()
        backward(model, batch)
        if step % 2:
            with pytest.raises(AssertionError, match="backward_passes_per_step"):
                backward(model, batch)
        optimizer.step()
    assert plan_counters()["rounds"] > 0


def test_clipping_between() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        def clip(model: nn.Module, optimizer: Any) -> None:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        for batch in batches:
            optimizer.zero_grad()
            backward(model, batch)
            clip(model, optimizer)
            with optimizer.skip_synchronize():
                optimizer.step()

    counted = same_bits_unlocked(train)
    assert counted.now["rounds"] == STEPS - LOCKS_AT


def test_hooks_of_the_user() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for param in model.parameters():
            param.register_hook(lambda grad: 0.5 * grad)
        training.steps(model, optimizer, batches)

    assert same_bits_unlocked(train).now["rounds"] == STEPS - LOCKS_AT


class Branches(nn.Module):
    """The first layer is used in some steps only, on some ranks only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.sometimes = nn.Linear(20, 20)
        self.rest = training.network()
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if (self.step + hvd.rank()) % 4 == 0:
            x = self.sometimes(x)
        return self.rest(x)  # type: ignore[no-any-return]


@and_on_hosts
def test_unused_parameters() -> None:
    # Zeros take their place at the end of a step, and so they come in another order.
    assert same_bits_unlocked(training.steps, Branches).now["locks"] == 0


@and_on_hosts
def test_a_layer_that_falls_out_later() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            # The last layer's gradient alone does not exist; zeros take its place.
            skips = step > 6 and hvd.rank() == 0
            hidden = model[:-1](x)
            loss = hidden.square().mean() if skips else nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    counted = same_bits_unlocked(train)
    assert counted.now["rounds"] == STEPS - LOCKS_AT
    assert not counted.unlocks


@and_on_hosts
def test_late_parameters() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        first = next(iter(model.parameters()))
        training.steps(model, optimizer, batches[: LOCKS_AT + 1])
        late = nn.Parameter(torch.ones(20))
        optimizer.add_param_group({"params": [late]})
        for x, y in batches[LOCKS_AT + 1 :]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x * late), y).backward()
            optimizer.step()
        assert len(set(hvd.allgather_object(late.tolist().__repr__()))) == 1
        assert first.grad is not None

    counted = same_bits_unlocked(train)
    assert counted.unlocks == {"end": 1}


@and_on_hosts
def test_a_step_that_is_cut_off() -> None:
    """A checkpoint loaded between two halves of a step: what was stored travels by itself."""

    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            backward(model, batch)
            if step == LOCKS_AT + 1:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()

    same_bits_unlocked(train)


@and_over_mpi
def test_another_shape_is_an_error_of_its_tensor() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(5)])
    optimizer = training.wrapped(model)

    def step() -> None:
        optimizer.zero_grad()
        sum(param.square().sum() for param in model).backward()
        optimizer.step()

    for _ in range(LOCKS_AT + 2):
        step()
    locked = plan_counters()
    param = model[2]
    whole = param.data
    if hvd.rank() == 0:
        param.grad = None
        param.data = torch.ones(2)
    optimizer.state.clear()
    for one in model:  # autograd itself would refuse
        one.grad = torch.ones_like(one)
    with pytest.raises(hvd.HorovodInternalError, match=r"allreduce\.2'.*shape") as raised:
        optimizer.step()
    assert getattr(raised.value, "tensor", "allreduce.2") == "allreduce.2"
    unlocks = plan_counters()
    reason = "changed" if hvd.rank() == 0 else "peer"
    assert unlocks[f"unlocks_{reason}"] == locked[f"unlocks_{reason}"] + 1
    param.grad = None
    param.data = whole
    optimizer.state.clear()
    for _ in range(STEPS):
        step()
    assert plan_counters()["locks"] == locked["locks"] + 1


@and_over_mpi
def test_a_frozen_parameter_unlocks_and_the_rest_locks_again() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for step, batch in enumerate(batches * 2):
            if step == LOCKS_AT + 1:
                first = next(iter(model.parameters()))
                first.requires_grad_(False)
                first.grad = None
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()

    counted = same_bits_unlocked(train)
    assert counted.now["locks"] == 2
    assert sum(counted.unlocks.values()) == 1


@and_over_mpi
def test_joins() -> None:
    """A rank after the other runs out of batches, with a locked plan."""

    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for epoch in range(2):
            count = STEPS - hvd.rank() - epoch
            training.steps(model, optimizer, batches[:count])
            hvd.join()
            # The ranks that joined early have stepped less often.
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    counted = same_bits_unlocked(train)
    assert counted.now["locks"] >= 1
    assert counted.unlocks.get("join", 0) + counted.unlocks.get("peer", 0) >= 1


@and_on_hosts
def test_two_optimizers() -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        other = training.network(seed=8)
        second = hvd.DistributedOptimizer(
            torch.optim.SGD(other.parameters(), lr=0.1),
            named_parameters=[(f"other.{name}", p) for name, p in other.named_parameters()],
        )
        for batch in batches:
            optimizer.zero_grad()
            second.zero_grad()
            nn.functional.cross_entropy(model(batch[0]) + other(batch[0]), batch[1]).backward()
            second.step()
            optimizer.step()
        assert len(set(hvd.allgather_object(training.bits(other)))) == 1

    assert same_bits_unlocked(train).now["locks"] == 2 * 1


@and_on_hosts
def test_an_optimizer_of_one_rank_is_wrapped_again() -> None:
    """One rank has new hooks, and the others lock on: nobody waits for ever."""

    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        for step, batch in enumerate(batches):
            if step == LOCKS_AT + 2 and hvd.rank() == 0:
                optimizer._gradients.hook()
            optimizer.zero_grad()
            backward(model, batch)
            optimizer.step()

    counted = same_bits_unlocked(train)
    assert counted.unlocks == {"end" if hvd.rank() == 0 else "peer": 1}


def test_hooks_of_one_rank_go_while_the_others_rest() -> None:
    """They leave, too, though they have no step: no call of the plan is left over."""

    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        training.steps(model, optimizer, batches[: LOCKS_AT + 1])
        locks = plan_counters()["locks"]
        if locks and hvd.rank() == 0:
            take_off(next(iter(model.parameters())))
            optimizer._gradients.hook()
        elif locks:
            left = time.monotonic() + 60
            while plan_counters()["unlocks_peer"] == 0 and time.monotonic() < left:
                time.sleep(0.01)
        hvd.barrier()
        training.steps(model, optimizer, batches[LOCKS_AT + 1 :])

    counted = same_bits_unlocked(train)
    assert counted.unlocks == {"end" if hvd.rank() == 0 else "peer": 1}


@and_on_hosts
def test_a_new_job_in_the_same_process() -> None:
    """The engine is gone that the hooks belong to, and with it the plan: the first step is whole,
    though a bucket of the plan lacks the gradient that is frozen."""

    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        training.steps(model, optimizer, batches[: LOCKS_AT + 2])
        hvd.shutdown()
        hvd.init()
        first = next(iter(model.parameters()))
        first.requires_grad_(False)
        first.grad = None
        training.steps(model, optimizer, batches[LOCKS_AT + 2 :])

    same_bits_unlocked(train)
    assert plan_counters()["rounds"] > 0


@pytest.mark.ranks(3, 4, framework="horoacc.torch", env=SMALL)
def test_a_set_that_is_removed() -> None:
    ranks = list(range(hvd.size() - 1))
    ours = hvd.add_process_set(ranks)
    model = training.network()
    if hvd.rank() in ranks:
        optimizer = training.wrapped(model, process_set=ours)
        training.steps(model, optimizer, training.own_batches(STEPS))
    hvd.remove_process_set(ours)
    if hvd.rank() in ranks:
        with pytest.raises(Exception, match="ProcessSet"):
            training.steps(model, optimizer, training.own_batches(1))


@and_on_hosts
def test_a_timeline_unlocks(tmp_path: Any) -> None:
    def train(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        training.steps(model, optimizer, batches[: LOCKS_AT + 2])
        hvd.start_timeline(str(tmp_path / "timeline.json"))
        training.steps(model, optimizer, batches[LOCKS_AT + 2 :])
        hvd.stop_timeline()

    counted = same_bits_unlocked(train)
    assert sum(counted.unlocks.values()) == 1


@pytest.mark.ranks(1, framework="horoacc.torch", env=SMALL)
def test_one_rank() -> None:
    assert same_bits_unlocked(training.steps).now["locks"] == 0
