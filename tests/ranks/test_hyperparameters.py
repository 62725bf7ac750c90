"""Ranks compare their hyperparameters after the ranks of an elastic job have changed."""

from __future__ import annotations

import warnings

import pytest
import torch

import horoacc.torch as hvd
from horoacc.elastic import member

pytestmark = pytest.mark.ranks(2, 3, framework="horoacc.torch")


@pytest.mark.parametrize("joins", [False, True])
def test_ranks_with_other_rates(ranks: int, joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All take rank 0's; while a rank has joined, which takes part in no broadcast, all warn."""
    monkeypatch.setattr(member, "epoch", lambda: 2)
    own = 0.5 + hvd.rank()
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], own), [("weight", weight)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if not joins or hvd.rank() < ranks - 1:
            weight.sum().backward()
            optimizer.step()
    said = [str(one.message) for one in told]
    if joins:
        hvd.join()
        alone = ranks == 2 or hvd.rank() == ranks - 1
        assert said == ([] if alone else ["some ranks step with other hyperparameters than others"])
        assert optimizer.param_groups[0]["lr"] == own
    else:
        name = f"rank {hvd.rank()} had other values of lr" if hvd.rank() else ""
        assert len(said) == bool(name) and all(one.startswith(name) for one in said)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert weight.tolist() == [-0.5] * 3
