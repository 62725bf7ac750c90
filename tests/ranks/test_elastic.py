"""The elastic loop in a job whose ranks stay the same: news of hosts, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import horoacc as neutral
import horoacc.torch as hvd
from horoacc import elastic
from horoacc.elastic import HostUpdateResult, notification_manager
from horoacc.errors import HorovodInternalError, HostsUpdatedInterrupt, Mismatch, PeerLost


def both(*sizes: int) -> Any:
    return pytest.mark.ranks(*sizes, framework="horoacc.torch")


@both(1, 2, 3, 4)
@pytest.mark.parametrize(
    ("news", "skip"),
    [
        ([HostUpdateResult.added], False),
        ([HostUpdateResult.removed], True),
        ([HostUpdateResult.removed, HostUpdateResult.added], False),
    ],
)
def test_news_of_hosts_interrupt_every_rank(news: list[HostUpdateResult], skip: bool) -> None:
    state = elastic.ObjectState(batch=0)
    state.check_host_updates()
    if hvd.rank() == 0:
        for number, one in enumerate(news):
            state.on_hosts_updated(10 + number, one)
    state.batch = 3
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync == skip
    state.restore()
    assert state.batch == 3  # saved first
    state.on_hosts_updated(5, HostUpdateResult.added)
    state.check_host_updates()  # older than the last: no news


@both(1, 2, 3, 4)
def test_hosts_updated_resets_and_goes_on(ranks: int) -> None:
    called: list[int] = []

    @hvd.elastic.run
    def train(state: Any, last: int) -> str:
        while state.batch < last:
            state.batch += 1
            if state.batch == 3 and not called:
                notification_manager.handle_hosts_updated(1, HostUpdateResult.added)
            hvd.allreduce(torch.ones(2), name="each batch")
            state.commit()
        return f"{state.batch} batches"

    state = elastic.ObjectState(batch=0)
    state.register_reset_callbacks([lambda: called.append(hvd.size())])
    assert train(state, 5) == "5 batches"
    assert called == [ranks] and train.__name__ == "train"
    notification_manager.handle_hosts_updated(2, HostUpdateResult.added)
    state.check_host_updates()  # the state listens no more


def data(batch: int) -> torch.Tensor:
    return torch.tensor([[1.0 + batch + hvd.rank(), 2.0]])


def trained(batches: int, size: int, rate: float) -> Any:
    """Gradient descent on the mean over ranks of the sum of x·w squared, by hand."""
    weight = np.array([1.0, -1.0])
    for batch in range(batches):
        gradient = np.zeros(2)
        for rank in range(size):
            x = np.array([1.0 + batch + rank, 2.0])
            gradient += 2 * (x @ weight) * x / size
        weight = weight - rate * gradient
    return weight


@both(1, 2, 3, 4)
@pytest.mark.parametrize("who", ["one", "all"])
def test_training_goes_back_to_its_last_commit(ranks: int, who: str) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0]]))
    model.double()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    failed: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.batch < 6:
            optimizer.zero_grad()
            model(data(state.batch).double()).square().sum().backward()
            optimizer.step()
            if state.batch == 4 and not failed and (who == "all" or hvd.rank() == ranks - 1):
                failed.append(state.batch)
                raise HorovodInternalError("as if a collective had failed")
            state.batch += 1
            if state.batch % 3 == 0:
                state.commit()

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])
    train(state)
    assert resets == [3]
    np.testing.assert_allclose(
        model.weight.detach().numpy()[0], trained(6, ranks, 0.01), rtol=1e-12
    )


@both(1, 2)
def test_the_neutral_frontend_goes_back_too(ranks: int) -> None:
    failed: list[int] = []

    @neutral.elastic.run
    def train(state: Any) -> float:
        while state.batch < 4:
            state.total += float(neutral.allreduce(np.ones(1), op=neutral.Sum)[0])
            state.batch += 1
            if state.batch == 3 and not failed:
                failed.append(1)
                raise HorovodInternalError("as if a collective had failed")
            if state.batch == 2:
                state.commit()
        return state.total

    assert train(neutral.elastic.ObjectState(batch=0, total=0.0)) == 4 * ranks
    hvd.shutdown()
    hvd.init()  # with torch's part, for the bodies that come next


@both(2, 3, 4)
def test_a_mismatch_is_raised_and_not_tried_again() -> None:
    calls: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(1)
        state.batch = 7
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="not alike")

    state = elastic.ObjectState(batch=0)
    with pytest.raises(Mismatch, match="not alike"):
        train(state)
    assert calls == [1] and state.batch == 7
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@both(1, 2, 3, 4)
def test_an_error_that_comes_again_and_again_ends_it() -> None:
    calls: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(state.batch)
        if state.batch < 2:
            state.batch += 1
            state.commit()
        state.batch = 9
        raise HorovodInternalError("it will not go away")

    state = elastic.ObjectState(batch=0)
    words = "it will not go away; it came 4 times without a commit, so that this job cannot go on"
    with pytest.raises(HorovodInternalError, match=words) as caught:
        train(state)
    assert isinstance(caught.value.__cause__, HorovodInternalError)
    assert calls == [0, 1, 2, 2, 2] and state.batch == 2


@both(1)
def test_a_lost_rank_ends_it_at_once_and_after_going_back() -> None:
    state = elastic.ObjectState(batch=0)
    resets: list[int] = []

    def lose(state: Any) -> None:
        state.batch = 4
        raise PeerLost("rank 5 died", 5)

    with pytest.raises(PeerLost, match="died; a rank that is lost is not replaced") as caught:
        elastic.run_fn(lose, lambda: resets.append(1))(state)
    assert caught.value.culprit == 5 and (state.batch, resets) == (0, [])


@both(1, 2, 3, 4)
def test_other_exceptions_pass_through() -> None:
    def train(state: Any, *, word: str) -> None:
        raise KeyError(word)

    with pytest.raises(KeyError, match="lost"):
        hvd.elastic.run(train)(elastic.ObjectState(), word="lost")
