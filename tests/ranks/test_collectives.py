"""Every operation, type and path against the oracle, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from paths import ALL_PATHS, CONTROL_PATHS, DATA_PATHS, DEFAULT_PATHS, RANKS, matrix

import horoacc as hvd

# Inline in flag lines; by the last rank to arrive; in slices and windows (paths.EARLY).
SHAPES = ((), (1,), (7, 3), (1003,), (9001,))


def inputs(dtype: str, shape: tuple[int, ...], label: str) -> list[Any]:
    return [oracle.values(dtype, shape, rank, label) for rank in range(hvd.size())]


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_allreduce(dtype: str) -> None:
    for word, op in oracle.OPS.items():
        if not oracle.has_meaning(dtype, op):
            continue
        for shape in SHAPES:
            name = f"{dtype}.{word}.{shape}"
            for time in ("cold", "warm"):
                given = inputs(dtype, shape, name + time)
                mine = given[hvd.rank()].copy()
                got = hvd.allreduce(mine, name=name, op=op)
                oracle.same_bits(got, oracle.reduce(given, op), f"{name} {time}")
                oracle.same_bits(mine, given[hvd.rank()], f"input of {name}")


@pytest.mark.parametrize("env", DATA_PATHS)
@pytest.mark.parametrize("dtype", oracle.DTYPES[1:])  # a truth value has no factor
@pytest.mark.ranks(2, 3, 8)
def test_scales_in_place(dtype: str) -> None:
    for shape in ((5,), (9001,)):
        for pre, post in ((0.5, 1.0), (1.0, 0.375), (1.7, 2.3)):
            for op in (oracle.AVERAGE, oracle.SUM):
                name = f"{dtype}.{shape}.{pre}.{post}.{op}"
                given = inputs(dtype, shape, name)
                mine = given[hvd.rank()].copy()
                back = hvd.allreduce_(
                    mine, name=name, op=op, prescale_factor=pre, postscale_factor=post
                )
                assert back is mine
                oracle.same_bits(mine, oracle.reduce(given, op, pre, post), name)


@pytest.mark.parametrize("env", DATA_PATHS)
@pytest.mark.ranks(*RANKS)
def test_groups_of_mixed_tensors(ranks: int) -> None:
    kinds = [("float32", (3,)), ("int64", (2, 2)), ("float32", (9001,)), ("float16", (9,))]
    for name in (None, "mixed", "mixed"):
        given = [inputs(dtype, shape, f"g{i}") for i, (dtype, shape) in enumerate(kinds)]
        mine = [ranks_input[hvd.rank()].copy() for ranks_input in given]
        got = hvd.grouped_allreduce(mine, name=name, op=hvd.Sum)
        hvd.grouped_allreduce_(mine, name=name, op=hvd.Sum)
        for index, each in enumerate(given):
            wanted = oracle.reduce(each, oracle.SUM)
            oracle.same_bits(got[index], wanted, f"{name} {index}")
            oracle.same_bits(mine[index], wanted, f"{name} {index} in place")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_allgather(dtype: str) -> None:
    for width, name in (((), "flat"), ((3,), "rows"), ((2, 5), "cubes"), ((5000,), "large")):
        for time in ("cold", "warm"):
            given = [
                oracle.values(dtype, (rank % 3, *width), rank, name + time)
                for rank in range(hvd.size())
            ]  # fmt: skip
            got = hvd.allgather(given[hvd.rank()], name=f"{dtype}.{name}")
            oracle.same_bits(got, np.concatenate(given), f"{name} {time}")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_broadcast(dtype: str) -> None:
    for shape in SHAPES:
        for root in {0, hvd.size() - 1}:
            name = f"{dtype}.{shape}"
            given = inputs(dtype, shape, f"{name}.{root}")
            mine = given[hvd.rank()].copy()
            oracle.same_bits(hvd.broadcast(mine, root, name=name), given[root], name)
            oracle.same_bits(mine, given[hvd.rank()], f"input of {name}")
            hvd.broadcast_(mine, root)
            oracle.same_bits(mine, given[root], f"{name} in place")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_alltoall(dtype: str) -> None:
    size, me = hvd.size(), hvd.rank()
    for width in ((), (3,), (2000,)):
        # Rank r sends (r + 2 t) % 3 rows to rank t, some of them none.
        splits = [[(rank + 2 * target) % 3 for target in range(size)] for rank in range(size)]
        name = f"{dtype}.{width}"
        given = [oracle.values(dtype, (sum(splits[r]), *width), r, name) for r in range(size)]
        begins = np.cumsum([[0, *rows[:-1]] for rows in splits], axis=1)
        wanted = np.concatenate(
            [given[r][begins[r][me] : begins[r][me] + splits[r][me]] for r in range(size)]
        )
        got, received = hvd.alltoall(given[me], splits[me], name=name)
        oracle.same_bits(got, wanted, name)
        assert received.tolist() == [splits[r][me] for r in range(size)]
        even = [oracle.values(dtype, (2 * size, *width), r, f"even {name}") for r in range(size)]
        wanted = np.concatenate([even[r][2 * me : 2 * me + 2] for r in range(size)])
        oracle.same_bits(hvd.alltoall(even[me]), wanted, f"even {name}")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES[1:]))
@pytest.mark.ranks(*RANKS)
def test_reducescatter(dtype: str) -> None:
    size, me = hvd.size(), hvd.rank()
    for shape in ((1,), (size,), (2 * size + 1, 3), (5, 3011)):
        for op in (oracle.SUM, oracle.AVERAGE):
            name = f"{dtype}.{shape}.{op}"
            given = inputs(dtype, shape, name)
            got = hvd.reducescatter(given[me], name=name, op=op)
            wanted = oracle.reduce(given, op)[oracle.rows_of(shape[0], me, size)]
            oracle.same_bits(got, wanted, name)
    given = inputs(dtype, (7, 2), "grouped")
    more = inputs("float32", (size + 1,), "grouped too")
    parts = hvd.grouped_reducescatter([given[me], more[me]], op=hvd.Sum)
    wanted = oracle.reduce(given, oracle.SUM)[oracle.rows_of(7, me, size)]
    oracle.same_bits(parts[0], wanted, "grouped")
    wanted = oracle.reduce(more, oracle.SUM)[oracle.rows_of(size + 1, me, size)]
    oracle.same_bits(parts[1], wanted, "grouped too")


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(*RANKS)
def test_any_order_of_submission(ranks: int) -> None:
    count, me = 40, hvd.rank()
    rng = np.random.default_rng(me)
    for step in range(3):
        given = [
            inputs("float32", (index * 37 % 501,), f"{step}.{index}") for index in range(count)
        ]
        flights = {
            int(index): hvd.allreduce_async(given[index][me], name=f"order{index}", op=hvd.Sum)
            for index in rng.permutation(count)
        }
        for index in rng.permutation(count):
            got = hvd.synchronize(flights[int(index)])
            oracle.same_bits(got, oracle.reduce(given[index], oracle.SUM), f"order{index}")


@pytest.mark.parametrize("env", [*DATA_PATHS, *CONTROL_PATHS])
@pytest.mark.ranks(16)
def test_sixteen_ranks(ranks: int) -> None:
    me = hvd.rank()
    for shape in ((9,), (9001,)):
        for dtype in ("float32", "float16", "int32"):
            given = inputs(dtype, shape, f"16.{dtype}.{shape}")
            got = hvd.allreduce(given[me], op=hvd.Average, name=f"16.{dtype}.{shape}")
            oracle.same_bits(got, oracle.reduce(given, oracle.AVERAGE), f"{dtype} {shape}")
    gathered = hvd.allgather(np.full((me, 2), me))
    oracle.same_bits(gathered, np.concatenate([np.full((r, 2), r) for r in range(16)]), "rows")
    hvd.barrier()


@pytest.mark.parametrize("env", DEFAULT_PATHS)
@pytest.mark.ranks(2, 3, 4)
def test_large_tensors_with_default_settings(ranks: int) -> None:
    me = hvd.rank()
    given = inputs("float32", (300_007,), "large")
    for op in (hvd.Average, hvd.Max):
        got = hvd.allreduce(given[me], name=f"large.{op}", op=op)
        oracle.same_bits(got, oracle.reduce(given, op), f"allreduce {op}")
    part = hvd.reducescatter(given[me], op=hvd.Sum)
    wanted = oracle.reduce(given, oracle.SUM)[oracle.rows_of(300_007, me, ranks)]
    oracle.same_bits(part, wanted, "reducescatter")
    oracle.same_bits(
        hvd.allgather(given[me][: 200_000 + me]),
        np.concatenate([given[r][: 200_000 + r] for r in range(ranks)]),
        "allgather",
    )
    oracle.same_bits(hvd.broadcast(given[me], ranks - 1), given[ranks - 1], "broadcast")
    even = [x[: 70_000 * ranks] for x in given]
    wanted = np.concatenate([even[r][70_000 * me : 70_000 * (me + 1)] for r in range(ranks)])
    oracle.same_bits(hvd.alltoall(even[me]), wanted, "alltoall")


@pytest.mark.ranks(2, 4)
def test_special_values(ranks: int) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], np.float32)
    mine = np.roll(special, hvd.rank())
    given = [np.roll(special, rank) for rank in range(ranks)]
    for op in (hvd.Sum, hvd.Min, hvd.Max):
        got = hvd.allreduce(mine, op=op)
        np.testing.assert_array_equal(got, oracle.reduce(given, op))


@pytest.mark.ranks(1, 2, 3)
def test_kinds_of_arrays(ranks: int) -> None:
    strided = np.arange(12.0).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(hvd.allreduce(strided, op=hvd.Sum), strided * ranks)
    assert float(hvd.allreduce(2.5, op=hvd.Sum)) == 2.5 * ranks
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce_(strided)
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hvd.allreduce_(frozen)
    with pytest.raises(ValueError, match="not supported"):
        hvd.allreduce(np.array(["text"]))


@pytest.mark.ranks(1, 2, 4)
def test_objects(ranks: int) -> None:
    me = hvd.rank()
    objects = hvd.allgather_object({"rank": me, "text": "x" * (1000 * me)})
    assert [found["rank"] for found in objects] == list(range(ranks))
    assert [len(found["text"]) for found in objects] == [1000 * rank for rank in range(ranks)]
    sent = {"function": (lambda x: x + 1), "rank": me}
    got = hvd.broadcast_object(sent, root_rank=ranks - 1)
    assert got["rank"] == ranks - 1
    assert got["function"](1) == 2
    assert hvd.broadcast_object(None, 0, name="nothing") is None


@pytest.mark.ranks(2, 3, 4)
def test_process_sets(ranks: int) -> None:
    me = hvd.rank()
    others = hvd.add_process_set(list(range(1, ranks)))
    assert others.size() == ranks - 1
    assert others.included() == (me > 0)
    with pytest.raises(ValueError, match="already"):
        hvd.add_process_set(list(range(1, ranks)))
    if me > 0:
        # A barrier of this set, and its unnamed calls, do not wait for rank 0.
        hvd.barrier(process_set=others)
        total = hvd.allreduce(np.array([float(me)]), op=hvd.Average, process_set=others)
        assert total[0] == sum(range(1, ranks)) / (ranks - 1)
        got = hvd.broadcast(np.array([me]), root_rank=ranks - 1, process_set=others)
        assert got[0] == ranks - 1
        assert others.rank() == me - 1
    else:
        with pytest.raises(ValueError, match="not in the process set"):
            hvd.allreduce(np.zeros(1), process_set=others)
    assert hvd.remove_process_set(others)
    assert not hvd.remove_process_set(others)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="not registered"):
        hvd.barrier(process_set=others)
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == ranks
