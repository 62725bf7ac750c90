"""torch's frontend: every type, in and out of the arena."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import oracle
import pytest
import torch
from paths import CONTROL_PATHS, only, without_turns

import horoacc.torch as hvd

pytestmark = pytest.mark.ranks(1, 2, 3, framework="horoacc.torch")

CONTROLLERS = [pytest.param({}, id="plain"), *only(CONTROL_PATHS, 2, 3)]
DTYPES = (*oracle.DTYPES, "bfloat16")
ARENA = {"HOROACC_ARENA": "all"}
PRIVATE = {"HOROACC_ARENA": "off"}
MODES = [pytest.param(ARENA, id="arena"), pytest.param(PRIVATE, id="private")]


def values(dtype: str, shape: tuple[int, ...], rank: int, label: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return values("float32", shape, rank, label).to(torch.bfloat16)
    return torch.from_numpy(oracle.values(dtype, shape, rank, label)).clone()


def reduced(
    given: list[torch.Tensor], op: int, pre: float = 1.0, post: float = 1.0
) -> torch.Tensor:
    if given[0].dtype == torch.bfloat16:
        # Widening to float32 is exact, and the canonical order accumulates there.
        if pre != 1.0:
            given = [(x.float() * torch.tensor(pre)).to(torch.bfloat16) for x in given]
        wide = oracle.reduce([x.float().numpy() for x in given], op, post=post)
        return torch.from_numpy(wide).to(torch.bfloat16)
    return torch.from_numpy(oracle.reduce([x.numpy() for x in given], op, pre, post))


def same(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert got.dtype == wanted.dtype, what
    assert got.shape == wanted.shape, what
    assert torch.equal(got.contiguous().view(-1).view(torch.uint8),
                       wanted.contiguous().view(-1).view(torch.uint8)), what  # fmt: skip


def in_place(call: Callable[[], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Makes a call that reduces a tensor in place, in the arena if the tensor should lie there."""
    before = hvd.counters()["arena_bytes"]
    got = call()
    assert got is tensor
    size = tensor.numel() * tensor.element_size()
    if os.environ.get("HOROACC_ARENA") == "all" and size >= 1 << 16 and hvd.size() > 1:
        assert hvd.counters()["arena_bytes"] - before == size
    return got


# On 3 and 8 ranks a type has one of its turns in and out of the arena.
BY_TURNS = [
    pytest.param(
        env, dtype, id=f"{word}-{dtype}", marks=[] if (i + j) % 2 == 0 else [without_turns]
    )
    for i, (word, env) in enumerate((("arena", ARENA), ("private", PRIVATE)))
    for j, dtype in enumerate(DTYPES)
]
OVER_CONTROL = [
    pytest.param(*path.values, dtype, id=f"{path.id}-{dtype}", marks=path.marks)
    for i, path in enumerate(only(CONTROL_PATHS, 2, 3))
    for j, dtype in enumerate(DTYPES)
    if (i + j) % 2 == 0
]


@pytest.mark.parametrize(("env", "dtype"), [*BY_TURNS, *OVER_CONTROL])
@pytest.mark.ranks(1, 2, 3, 4, 8, framework="horoacc.torch")
def test_every_type(dtype: str) -> None:
    # Of two types, also for slices instead of the last to arrive.
    large = 70_001 if dtype in ("float32", "bfloat16") else arena_elements(dtype)
    every_type(dtype, ((), (5,), (3, 4), (large,)))


def arena_elements(dtype: str) -> int:
    """How many make a tensor large enough for the arena."""
    return 70_001 // values(dtype, (), 0, "").element_size()


@pytest.mark.parametrize(
    ("env", "dtype"),
    [(ARENA, "bfloat16"), (ARENA, "int64"), (PRIVATE, "float32")],
    ids=["arena-bfloat16", "arena-int64", "private-float32"],
)
@pytest.mark.ranks(16, framework="horoacc.torch")
def test_sixteen_ranks(dtype: str) -> None:
    every_type(dtype, ((5,), (arena_elements(dtype),)))


def every_type(dtype: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    me, size = hvd.rank(), hvd.size()
    for shape in shapes:
        name = f"{dtype}.{shape}"
        given = [values(dtype, shape, rank, name) for rank in range(size)]
        total = reduced(given, oracle.SUM)
        for op in oracle.OPS.values():
            if not oracle.has_meaning(dtype, op):
                with pytest.raises(ValueError, match=dtype):
                    hvd.allreduce(given[me], op=op)
                continue
            wanted = total if op == oracle.SUM else reduced(given, op)
            same(hvd.allreduce(given[me], op=op, name=name), wanted, name)
            mine = given[me].clone()
            got = in_place(lambda: hvd.allreduce_(mine, op=op), mine)  # noqa: B023 - called now
            same(got, wanted, f"{name} in place")
            if dtype == "bool":
                continue
            mine = given[me].clone()
            scales = {"prescale_factor": 1.7, "postscale_factor": 0.3}
            got = in_place(lambda: hvd.allreduce_(mine, op=op, **scales), mine)  # noqa: B023
            same(got, reduced(given, op, 1.7, 0.3), f"{name} scaled")
        same(hvd.broadcast(given[me], size - 1), given[size - 1], name)
        group = hvd.grouped_allreduce([given[me], given[me].clone()], op=hvd.Sum)
        same(group[1], total, f"group {name}")
        if not shape:
            continue
        same(hvd.allgather(given[me], name=name), torch.cat(given), name)
        if dtype != "bool":
            got = hvd.reducescatter(given[me], op=hvd.Sum)
            mine = oracle.rows_of(shape[0], me, size)
            same(got, total[mine], f"scatter {name}")
        rows = [values(dtype, (size, *shape), rank, f"all {name}") for rank in range(size)]
        got, received = hvd.alltoall(rows[me], torch.ones(size, dtype=torch.int32))
        same(got, torch.stack([row[me] for row in rows]), f"all to all {name}")
        assert received.dtype == torch.int32
        assert received.tolist() == [1] * size


def test_refused_tensors() -> None:
    x = torch.arange(12.0).view(3, 4)
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="contiguous"):
            call(x.t())
    with pytest.raises(ValueError, match="contiguous"):
        hvd.broadcast_(x.t(), 0)
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(torch.zeros(2, dtype=torch.uint16))
    with pytest.raises(ValueError, match="sparse_allreduce_async"):
        hvd.allreduce(x.to_sparse())
    with pytest.raises(ValueError, match="device meta"):
        hvd.allreduce(torch.zeros(2, device="meta"))
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
        with pytest.raises(ValueError, match=r"torch\.Tensor is needed, not a list"):
            call([1.0])
    with pytest.raises(ValueError, match="one dimension"):
        hvd.alltoall(x, torch.ones(1, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="int32"):
        hvd.alltoall(x, torch.ones(hvd.size()))
    assert hvd.synchronize(10**9) is None
    conjugate = torch.tensor([1 + 2j]).conj()
    assert hvd.allreduce(conjugate, op=hvd.Sum)[0] == (1 - 2j) * hvd.size()


@pytest.mark.parametrize("env", CONTROLLERS)
def test_neutral_frontend_takes_tensors() -> None:
    import horoacc

    got = horoacc.allreduce(torch.ones(3, dtype=torch.bfloat16), op=horoacc.Sum)
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [hvd.size()] * 3
    assert isinstance(horoacc.allgather(np.ones(2)), np.ndarray)


@pytest.mark.parametrize("env", CONTROLLERS)
def test_sparse_allreduce() -> None:
    me, size = hvd.rank(), hvd.size()
    mine = torch.sparse_coo_tensor([[me, me + 1]], [[1.0, 2.0], [3.0, 4.0]], (size + 1, 2))
    handle = hvd.sparse_allreduce_async(mine, "sparse", hvd.Average)
    total = torch.zeros(size + 1, 2)
    for rank in range(size):
        total[rank] += torch.tensor([1.0, 2.0])
        total[rank + 1] += torch.tensor([3.0, 4.0])
    torch.testing.assert_close(hvd.synchronize(handle).to_dense(), total / size)


@pytest.mark.parametrize("env", CONTROLLERS)
def test_compression() -> None:
    x = torch.full((7,), 1.0 / 3.0)
    for compressor, narrow in ((hvd.Compression.fp16, torch.float16),
                               (hvd.Compression.bf16, torch.bfloat16)):  # fmt: skip
        compressed, context = compressor.compress(x)
        assert compressed.dtype == narrow
        assert compressor.decompress(compressed, context).dtype == torch.float32
        got = hvd.allreduce(x, compression=compressor)
        assert got.dtype == torch.float32
        assert torch.equal(got, x.to(narrow).float())
        (part,) = hvd.grouped_reducescatter([x[: hvd.size()]], compression=compressor)
        assert torch.equal(part, x[:1].to(narrow).float())
        untouched, context = compressor.compress(torch.ones(2, dtype=torch.int32))
        assert untouched.dtype == torch.int32
        assert context is None
    assert hvd.Compression.none.compress(x) == (x, None)
