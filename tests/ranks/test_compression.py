"""Codecs and compressors of users: what travels, what is lost, what comes back the next time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import training
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import horoacc
import horoacc.torch as hvd
from horoacc.eight_bit import BLOCK, Int8Compressor

pytestmark = pytest.mark.ranks(1, 2, 3, 4, framework="horoacc.torch")


def numbers(count: int, rank: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(count, generator=generator) * scale


def quantised(x: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What 8 bits leave of a vector, in float64 and block by block."""
    out = np.zeros(x.size)
    for begin in range(0, x.size, BLOCK):
        block = x[begin : begin + BLOCK].astype(np.float64)
        scale = np.float64(np.float32(np.abs(block).max() / np.float32(127)))
        if scale > 0:
            out[begin : begin + BLOCK] = np.rint(np.float32(block / scale)) * scale
    return out


def shares(count: int) -> list[slice]:
    ends = np.cumsum([count // hvd.size() + (r < count % hvd.size()) for r in range(hvd.size())])
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def expected(vectors: list[torch.Tensor], divisor: float) -> np.ndarray[Any, Any]:
    """Quantised by part before and after the sum."""
    out = np.zeros(vectors[0].numel())
    for part in shares(out.size):
        total = sum(quantised(v.numpy()[part]) for v in vectors)
        out[part] = quantised((total / divisor).astype(np.float32))
    return out


@pytest.mark.parametrize("count", [0, 1, 255, 1000, 70001])
def test_allreduce_in_eight_bits(count: int) -> None:
    size = hvd.size()
    vectors = [numbers(count, rank, 10.0**rank) for rank in range(size)]
    mine = vectors[hvd.rank()]
    got = hvd.allreduce(mine, compression=hvd.Compression.int8, name="eight")
    wanted = expected(vectors, size)
    top = float(np.abs(wanted).max(initial=1e-30))
    np.testing.assert_allclose(got.numpy(), wanted, atol=top / 100)
    exact = np.mean([v.double().numpy() for v in vectors], axis=0)
    np.testing.assert_allclose(got.numpy(), exact, atol=(size + 2) * 10.0 ** (size - 1) * 5 / 127)
    assert len(set(hvd.allgather_object(got.numpy().tobytes()))) == 1
    summed = hvd.allreduce(
        mine.view(1, -1).double(), op=hvd.Sum, compression=hvd.Compression.int8,
        prescale_factor=0.5, postscale_factor=2.0,
    )  # fmt: skip
    assert summed.dtype == torch.float64
    assert summed.shape == (1, count)
    np.testing.assert_allclose(summed[0].numpy(), got.numpy() * size, atol=top * size / 50)


def test_other_frontends_and_types() -> None:
    size = hvd.size()
    ones = np.ones((3, 4), np.float64)
    got = horoacc.allreduce(ones, op=horoacc.Sum, compression=horoacc.Compression.int8)
    np.testing.assert_allclose(got, ones * size, rtol=1e-6)
    # Integers travel as they are.
    whole = torch.arange(5)
    got = hvd.allreduce(whole, op=hvd.Sum, compression=hvd.Compression.int8)
    assert got.tolist() == [k * size for k in range(5)]
    group = hvd.grouped_allreduce([torch.ones(3), torch.full((2, 2), 7.0)], op=hvd.Sum,
                                  compression=hvd.Compression.int8, name="group")  # fmt: skip
    torch.testing.assert_close(group[1], torch.full((2, 2), 7.0 * size))
    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, compression=hvd.Compression.int8).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [size] * 3
    code, context = hvd.Compression.int8.compress(torch.full((2, 3), 5.0, dtype=torch.bfloat16))
    assert code.dtype == torch.uint8
    assert code.numel() == 6 + 4
    back = hvd.Compression.int8.decompress(code, context)
    assert back.dtype == torch.bfloat16
    assert torch.equal(back, torch.full((2, 3), 5.0, dtype=torch.bfloat16))


def test_refused() -> None:
    for op in (hvd.Max, hvd.Adasum):
        with pytest.raises(ValueError, match="Average and Sum only"):
            hvd.allreduce(torch.ones(3), op=op, compression=hvd.Compression.int8)
    with pytest.raises(ValueError, match="not for reducescatter"):
        hvd.reducescatter(torch.ones(3), compression=hvd.Compression.int8)
    with pytest.raises(ValueError, match="not for reducescatter"):
        hvd.grouped_reducescatter([torch.ones(3)], compression=hvd.Compression.int8)


def test_an_overflow_is_seen_by_all_and_forgotten() -> None:
    x = torch.ones(600)
    if hvd.rank() == 0:
        x[3] = float("inf")
    got = hvd.allreduce(x, compression=hvd.Compression.int8)
    assert not torch.isfinite(got).all()
    param = nn.Parameter(torch.zeros(600))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), [("p", param)], compression=hvd.Compression.int8
    )
    for step in range(2):
        optimizer.zero_grad()
        (param * (x if step == 0 else torch.ones(600))).sum().backward()
        optimizer.synchronize()
        assert param.grad is not None
        # One rank alone has nothing to compress.
        assert bool(torch.isfinite(param.grad).all()) == (
            step == 1 or (hvd.size() == 1 and hvd.rank() != 0)
        )


@pytest.mark.ranks(2, 3, 4, framework="horoacc.torch")
def test_nothing_is_lost_for_good() -> None:
    """A gradient too small for its block's scale: without feedback it would never arrive."""
    param = nn.Parameter(torch.zeros(300, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), [("p", param)], compression=hvd.Compression.int8
    )
    slope = torch.full((300,), 1e-3, dtype=torch.float64)
    slope[0] = 1.0
    steps = 200
    for _ in range(steps):
        optimizer.zero_grad()
        (param * slope * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    wanted = -steps * slope * (hvd.size() + 1) / 2
    # What is still on its way is at most a step of the scale on either side.
    torch.testing.assert_close(param.data, wanted, rtol=0.0, atol=2.0 * hvd.size() / 127)
    assert float(param.data[1]) < -0.05
    blunt = quantised(slope.numpy())
    assert blunt[1] == 0.0


@pytest.mark.ranks(2, 3, framework="horoacc.torch")
@pytest.mark.parametrize("arguments", [{}, {"groups": 2}, {"backward_passes_per_step": 2}], ids=str)
def test_trains(arguments: dict[str, Any]) -> None:
    passes = arguments.get("backward_passes_per_step", 1)

    def train(compression: Any) -> tuple[float, Any]:
        model = training.network()
        optimizer = training.wrapped(model, compression=compression, **arguments)
        losses = []
        batches = training.own_batches(2) * 15
        for k in range(0, len(batches), passes):
            optimizer.zero_grad()
            loss = torch.zeros(())
            for x, y in batches[k : k + passes]:
                loss = nn.functional.cross_entropy(model(x), y) / passes
                loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        training.finish(model)
        return losses[-1], losses[0]

    (plain, first), (coded, _) = train(hvd.Compression.none), train(hvd.Compression.int8)
    assert plain < 0.99 * first
    assert first - coded == pytest.approx(first - plain, rel=0.1)


class Halved(hvd.Compression.none):  # type: ignore[misc,name-defined]
    """A compressor as users of Horovod write them."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor / 2).to(torch.bfloat16), (tensor.dtype, 2)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        dtype, factor = ctx
        return tensor.to(dtype) * factor


@pytest.mark.parametrize("compression", [Halved, Halved()], ids=["class", "instance"])
def test_compressor_of_a_user(compression: Any) -> None:
    size = hvd.size()
    got = hvd.allreduce(torch.full((5,), 6.0), op=hvd.Sum, compression=compression)
    assert got.dtype == torch.float32
    assert got.tolist() == [6.0 * size] * 5
    (part,) = hvd.grouped_reducescatter([torch.full((size,), 4.0)], compression=compression)
    assert part.tolist() == [4.0]
    param = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), [("p", param)], compression=compression
    )
    (param * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert param.tolist() == [-(size + 1) / 2] * 4


@pytest.mark.ranks(1)
def test_codec_bounds_its_error() -> None:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 3 * BLOCK), st.integers(-30, 30), st.integers(0, 2**31))
    def check(count: int, exponent: int, seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=count).astype(np.float32)
        x *= np.float32(2.0**exponent)
        code = Int8Compressor.encode(x)
        assert code.size == Int8Compressor.encoded_bytes(count)
        back = Int8Compressor.decode(code, count)
        for begin in range(0, count, BLOCK):
            block = x[begin : begin + BLOCK]
            lost = np.abs(back[begin : begin + BLOCK] - block).max()
            assert lost <= np.abs(block).max() / 253

    check()
