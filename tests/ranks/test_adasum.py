"""Adasum against its formula in float64, on any number of ranks, by every way through the core."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from oracle import adasum
from paths import CONTROL_PATHS, DATA_PATHS, only

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, 4, 8, framework="horoacc.torch")

TYPES = {
    "float16": (torch.float16, 2e-3),
    "bfloat16": (torch.bfloat16, 1.6e-2),
    "float32": (torch.float32, 1e-6),
    "float64": (torch.float64, 1e-12),
}
AUTO, ARENA, *FORCED = DATA_PATHS
PLACES = [AUTO, ARENA, *only(FORCED, 3), *only(CONTROL_PATHS, 2)]


def vectors(shape: tuple[int, ...], label: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Every rank's tensor: a common part and one of its own."""
    common = oracle.values("float64", shape, 99, label)
    given = []
    for rank in range(hvd.size()):
        own = oracle.values("float64", shape, rank, label)
        mixed = np.asarray((common + (rank + 1) * own) / 8)
        given.append(torch.from_numpy(mixed).to(dtype))
    return given


def close(
    got: torch.Tensor, given: list[torch.Tensor], tolerance: float, factor: float = 1
) -> None:
    wanted = factor * adasum([x.double().numpy() for x in given])
    scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
    assert got.dtype == given[0].dtype
    assert got.shape == given[0].shape
    np.testing.assert_allclose(got.double().numpy(), wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("env", PLACES)
@pytest.mark.parametrize("dtype", TYPES)
def test_formula(dtype: str) -> None:
    kind, tolerance = TYPES[dtype]
    for shape in ((), (5,), (3, 4), (70001,), (0,)):
        given = vectors(shape, f"{dtype}.{shape}", kind)
        mine = given[hvd.rank()]
        kept = mine.clone()
        close(hvd.allreduce(mine, op=hvd.Adasum, name=f"adasum.{shape}"), given, tolerance)
        assert torch.equal(mine, kept)
        handle = hvd.allreduce_async_(mine, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=4)
        got = hvd.synchronize(handle)
        assert got is mine
        # `mine` was one of them and has been overwritten.
        close(got, vectors(shape, f"{dtype}.{shape}", kind), tolerance, factor=2.0)
        found = hvd.allgather_object(got.double().numpy().tobytes())
        assert len(set(found)) == 1


@pytest.mark.parametrize("env", PLACES)
def test_factors_belong_to_tensors_not_to_buckets() -> None:
    shapes = [(7,), (4000,), (33000,), (3, 5), (0,)]
    groups = [vectors(shape, f"group {shape}", torch.float32) for shape in shapes]
    # A tensor that all ranks agree on stays as it is; one that no two share is summed.
    alone = torch.zeros(hvd.size())
    alone[hvd.rank()] = hvd.rank() + 1.0
    mine = [*(group[hvd.rank()] for group in groups), torch.full((9,), 3.0), alone]
    for _ in range(3):  # once loose, then in buckets
        got = hvd.grouped_allreduce(mine, op=hvd.Adasum, name="group")
        singly = [
            hvd.allreduce_async(x, op=hvd.Adasum, name=f"one {k}") for k, x in enumerate(mine)
        ]
        sums = hvd.allreduce_async(mine[1], op=hvd.Sum, name="a sum among them")
        results = [hvd.synchronize(handle) for handle in singly]
        for given, together, apart in zip(groups, got, results, strict=False):
            close(together, given, 1e-6)
            assert torch.equal(together, apart), "the bits depend on the bucket"
        assert torch.equal(got[-2], torch.full((9,), 3.0))
        assert torch.equal(got[-1], torch.arange(1.0, hvd.size() + 1))
        wanted = oracle.reduce([x.numpy() for x in groups[1]], hvd.Sum)
        assert torch.equal(hvd.synchronize(sums), torch.from_numpy(wanted))


def test_special_vectors() -> None:
    me, size = hvd.rank(), hvd.size()
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)
    zero = torch.zeros_like(x)
    assert torch.equal(hvd.allreduce(zero, op=hvd.Adasum), zero)
    # Zeros of all ranks but one leave it alone.
    assert torch.equal(hvd.allreduce(x if me == size - 1 else zero, op=hvd.Adasum), x)
    # Parallel vectors of different lengths: pairwise means, along the tree.
    given = [x * (rank + 1) for rank in range(size)]
    close(hvd.allreduce(given[me], op=hvd.Adasum), given, 1e-13)
    # Opposite vectors cancel, and what has cancelled has no direction.
    given = [x if rank % 2 else -x for rank in range(size)]
    got = hvd.allreduce(given[me], op=hvd.Adasum)
    wanted = adasum([v.numpy() for v in given])
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-12)
    # What is not finite is seen by all.
    bad = x.clone()
    bad[3] = float("inf") if me == 0 else 1.0
    if size > 1:
        assert not torch.isfinite(hvd.allreduce(bad, op=hvd.Adasum)).all()


def test_large_tensor() -> None:
    # Several chunks for each rank, beyond what the last rank reduces alone.
    given = vectors((300_001,), "large", torch.float32)
    for _ in range(2):
        close(hvd.allreduce(given[hvd.rank()], op=hvd.Adasum, name="large"), given, 1e-6)


@pytest.mark.ranks(16, framework="horoacc.torch")
def test_sixteen_ranks() -> None:
    given = vectors((40001,), "sixteen", torch.float64)
    close(hvd.allreduce(given[hvd.rank()], op=hvd.Adasum), given, 1e-12)


@pytest.mark.ranks(3, framework="horoacc.torch")
def test_process_set() -> None:
    members = hvd.add_process_set([0, 2])
    given = vectors((100,), "set", torch.float64)
    if members.included():
        got = hvd.allreduce(given[hvd.rank()], op=hvd.Adasum, process_set=members)
        close(got, [given[0], given[2]], 1e-12)
    hvd.remove_process_set(members)


@pytest.mark.ranks(1, 2, 3, framework="horoacc.torch")
def test_refused() -> None:
    for dtype in (torch.int32, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match="adasum of"):
            hvd.allreduce(torch.ones(3, dtype=dtype), op=hvd.Adasum)
    with pytest.raises(RuntimeError, match="Reducescatter only supports"):
        hvd.reducescatter(torch.ones(3), op=hvd.Adasum)
    if hvd.size() > 1:
        op = hvd.Adasum if hvd.rank() == 0 else hvd.Sum
        with pytest.raises(hvd.HorovodInternalError, match="adasum"):
            hvd.allreduce(torch.ones(3), op=op, name="different")
