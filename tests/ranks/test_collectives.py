"""Every operation, type and path against the oracle, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import arena_arrays
import numpy as np
import oracle
import pytest
from arena_arrays import placed
from paths import (
    ALL_PATHS,
    CONTROL_PATHS,
    DATA_PATHS,
    DEFAULT_PATHS,
    RANKS,
    SHM_OVER_MPI,
    matrix,
    over_mpi,
)

import horoacc as hvd

# Inline in flag lines; by the last rank to arrive; in slices and windows (paths.EARLY).
SHAPES = ((), (1,), (7, 3), (1003,), (9001,))


def inputs(dtype: str, shape: tuple[int, ...], label: str) -> list[Any]:
    return [oracle.values(dtype, shape, rank, label) for rank in range(hvd.size())]


def went_as_forced(before: dict[str, int], given: int) -> None:
    """Checks by the counters that `given` bytes went the way that the pool's variables force."""
    after = hvd.counters()
    counter = {"windows": "window_bytes", "staged": "staged_bytes"}.get(
        os.environ.get("HOROACC_REDUCE_PATH", ""), "arena_bytes" if arena_arrays.expected() else ""
    )
    if counter and hvd.size() > 1:
        assert after[counter] - before[counter] == given, f"{counter} by {given}"


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_allreduce(dtype: str) -> None:
    for shape in SHAPES:
        for time in ("cold", "warm"):
            given = inputs(dtype, shape, f"{dtype}.{shape}.{time}")
            for word, op in oracle.OPS.items():
                if not oracle.has_meaning(dtype, op):
                    continue
                name = f"{dtype}.{word}.{shape}"
                mine = placed(given[hvd.rank()])
                wanted = oracle.reduce(given, op)
                got = hvd.allreduce(mine, name=name, op=op)
                oracle.same_bits(got, wanted, f"{name} {time}")
                oracle.same_bits(mine, given[hvd.rank()], f"input of {name}")
                before = hvd.counters()
                hvd.allreduce_(mine, name=name, op=op)
                oracle.same_bits(mine, wanted, f"{name} {time} in place")
                went_as_forced(before, mine.nbytes)


# A truth value has no factor.
@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES[1:], 2, 3))
@pytest.mark.ranks(*RANKS)
def test_scales_in_place(dtype: str) -> None:
    for shape in ((5,), (9001,)):
        given = inputs(dtype, shape, f"{dtype}.{shape}")
        for pre, post in ((0.5, 1.0), (1.0, 0.375), (1.7, 2.3)):
            for op in oracle.OPS.values():
                if not oracle.has_meaning(dtype, op):
                    continue
                name = f"{dtype}.{shape}.{pre}.{post}.{op}"
                mine = placed(given[hvd.rank()])
                back = hvd.allreduce_(
                    mine, name=name, op=op, prescale_factor=pre, postscale_factor=post
                )
                assert back is mine
                oracle.same_bits(mine, oracle.reduce(given, op, pre, post), name)


def horovods(given: list[np.ndarray], pre: float, post: float) -> np.ndarray:
    """Two ranks' sum as Horovod computes it on CPUs: ScaleBufferCPUImpl before and after MPI."""
    dtype = given[0].dtype
    exact = dtype.kind == "i" or dtype == np.float64
    factor = np.float64 if exact else np.float32

    def scaled(x: np.ndarray, by: float) -> np.ndarray:
        return (x.astype(factor) * factor(by)).astype(dtype) if by != 1.0 else x

    return scaled(scaled(given[0], pre) + scaled(given[1], pre), post)


# Sums of float16 are exact here: where they are not, Horovod rounds them before the factor.
@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(2)
def test_factors_give_horovods_bits() -> None:
    for dtype in ("float32", "float16", "float64", "int32", "int64"):
        for pre, post in ((1 / 3, 1.0), (1.0, 0.1), (0.7, 1.0), (0.25, 1.7), (1e-3, 1e3)):
            given = [oracle.values(dtype, (6001,), rank, f"{pre}") for rank in range(2)]
            if dtype == "float16" and post != 1.0:
                given = [np.round(x * 64) / 4 for x in given]
                pre = 0.5 if pre != 1.0 else pre
            mine = placed(given[hvd.rank()])
            factors = {"prescale_factor": pre, "postscale_factor": post}
            for op, divisor in ((hvd.Sum, 1), (hvd.Average, 2)):
                wanted = horovods(given, pre, post / divisor)
                own = wanted[oracle.rows_of(len(wanted), hvd.rank(), 2)]
                name = f"{dtype}.{pre}.{post}.{divisor}"
                got = hvd.allreduce(mine, name=name, op=op, **factors)
                oracle.same_bits(got, wanted, name)
                for got in hvd.grouped_allreduce([mine, mine], name=name, op=op, **factors):
                    oracle.same_bits(got, wanted, f"{name}, group")
                got = hvd.reducescatter(mine, name=name, op=op, **factors)
                oracle.same_bits(got, own, f"{name}, scatter")
                for got in hvd.grouped_reducescatter([mine, mine], name=name, op=op, **factors):
                    oracle.same_bits(got, own, f"{name}, scattered group")


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(*RANKS)
def test_a_finite_mean_of_float16_is_finite() -> None:
    for length in (3, 9001):
        mine = placed(np.full(length, 60_000, np.float16))
        for name in ("mean", "again"):
            got = hvd.allreduce(mine, name=f"{name}.{length}", op=hvd.Average)
            assert np.all(np.abs(np.float32(got) - 60_000) <= 32), got


@pytest.mark.parametrize("env", ALL_PATHS)
@pytest.mark.ranks(*RANKS)
def test_groups_of_mixed_tensors(ranks: int) -> None:
    kinds = [("float32", (3,)), ("int64", (2, 2)), ("float32", (9001,)), ("float16", (9,))]
    for name in (None, "mixed", "mixed"):
        given = [inputs(dtype, shape, f"g{i}") for i, (dtype, shape) in enumerate(kinds)]
        mine = [placed(ranks_input[hvd.rank()]) for ranks_input in given]
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
            got = hvd.allgather(placed(given[hvd.rank()]), name=f"{dtype}.{name}")
            oracle.same_bits(got, np.concatenate(given), f"{name} {time}")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES))
@pytest.mark.ranks(*RANKS)
def test_broadcast(dtype: str) -> None:
    for shape in SHAPES:
        for root in {0, hvd.size() - 1}:
            name = f"{dtype}.{shape}"
            given, sent = (
                oracle.values(dtype, shape, rank, f"{name}.{root}") for rank in (hvd.rank(), root)
            )
            mine = placed(given)
            oracle.same_bits(hvd.broadcast(mine, root, name=name), sent, name)
            oracle.same_bits(mine, given, f"input of {name}")
            hvd.broadcast_(mine, root)
            oracle.same_bits(mine, sent, f"{name} in place")


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
        got, received = hvd.alltoall(placed(given[me]), splits[me], name=name)
        oracle.same_bits(got, wanted, name)
        assert received.tolist() == [splits[r][me] for r in range(size)]
        even = [oracle.values(dtype, (2 * size, *width), r, f"even {name}") for r in range(size)]
        wanted = np.concatenate([even[r][2 * me : 2 * me + 2] for r in range(size)])
        oracle.same_bits(hvd.alltoall(placed(even[me])), wanted, f"even {name}")


@pytest.mark.parametrize(("env", "dtype"), matrix(oracle.DTYPES[1:]))
@pytest.mark.ranks(*RANKS)
def test_reducescatter(dtype: str) -> None:
    size, me = hvd.size(), hvd.rank()
    for shape in ((1,), (size,), (2 * size + 1, 3), (5, 3011)):
        given = inputs(dtype, shape, f"{dtype}.{shape}")
        for op in (oracle.SUM, oracle.AVERAGE):
            name = f"{dtype}.{shape}.{op}"
            got = hvd.reducescatter(placed(given[me]), name=name, op=op)
            wanted = oracle.reduce(given, op)[oracle.rows_of(shape[0], me, size)]
            oracle.same_bits(got, wanted, name)
    given = inputs(dtype, (7, 2), "grouped")
    more = inputs("float32", (size + 1,), "grouped too")
    parts = hvd.grouped_reducescatter([placed(given[me]), placed(more[me])], op=hvd.Sum)
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
            int(index): hvd.allreduce_async_(
                placed(given[index][me]), name=f"order{index}", op=hvd.Sum
            )
            for index in rng.permutation(count)
        }
        for index in rng.permutation(count):
            got = hvd.synchronize(flights[int(index)])
            oracle.same_bits(got, oracle.reduce(given[index], oracle.SUM), f"order{index}")


# Types take turns through the paths.
SIXTEEN = ("bool", "int32", "float16", "float32", "complex64")


@pytest.mark.parametrize(
    ("env", "dtypes"),
    [
        pytest.param(*path.values, (SIXTEEN[k % 5], SIXTEEN[(k + 2) % 5]), id=path.id,
                     marks=path.marks)
        for k, path in enumerate(ALL_PATHS)
    ],
)  # fmt: skip
@pytest.mark.ranks(16)
def test_sixteen_ranks(dtypes: tuple[str, ...]) -> None:
    me = hvd.rank()
    for shape in ((9,), (9001,)):
        for dtype in dtypes:
            name = f"16.{dtype}.{shape}"
            given = inputs(dtype, shape, name)
            mine = placed(given[me])
            for op in oracle.OPS.values():
                if oracle.has_meaning(dtype, op):
                    wanted = oracle.reduce(given, op)
                    oracle.same_bits(hvd.allreduce(mine, op=op, name=name), wanted, name)
            oracle.same_bits(hvd.broadcast(mine, 11, name=name), given[11], name)
            rows = hvd.allgather(mine[: len(mine) - me % 3], name=name)
            wanted = np.concatenate([x[: len(x) - r % 3] for r, x in enumerate(given)])
            oracle.same_bits(rows, wanted, name)
            splits = [shape[0] // 11 if target % 3 else 0 for target in range(16)]
            splits[-1] += shape[0] - sum(splits)
            begin = sum(splits[:me])
            wanted = np.concatenate([x[begin : begin + splits[me]] for x in given])
            oracle.same_bits(hvd.alltoall(mine, splits, name=name)[0], wanted, name)
            if dtype != "bool":
                part = hvd.reducescatter(mine, op=hvd.Sum, name=name)
                wanted = oracle.reduce(given, oracle.SUM)[oracle.rows_of(shape[0], me, 16)]
                oracle.same_bits(part, wanted, name)
            group = hvd.grouped_allreduce_([mine, mine.copy()], op=hvd.Sum, name=name)
            for member in group:
                oracle.same_bits(member, oracle.reduce(given, oracle.SUM), f"group {name}")
    hvd.barrier()


@pytest.mark.parametrize("env", [*DEFAULT_PATHS, *CONTROL_PATHS, *SHM_OVER_MPI])
@pytest.mark.ranks(2, 3, 4)
def test_large_tensors(ranks: int) -> None:
    me = hvd.rank()
    given = inputs("float32", (300_007,), "large")
    mine = placed(given[me])
    for op in (hvd.Average, hvd.Max):
        got = hvd.allreduce(mine, name=f"large.{op}", op=op)
        oracle.same_bits(got, oracle.reduce(given, op), f"allreduce {op}")
        back = hvd.allreduce_(placed(given[me]), name=f"large.{op}", op=op)
        oracle.same_bits(back, oracle.reduce(given, op), f"allreduce {op} in place")
    part = hvd.reducescatter(mine, op=hvd.Sum)
    wanted = oracle.reduce(given, oracle.SUM)[oracle.rows_of(300_007, me, ranks)]
    oracle.same_bits(part, wanted, "reducescatter")
    oracle.same_bits(
        hvd.allgather(mine[: 200_000 + me]),
        np.concatenate([given[r][: 200_000 + r] for r in range(ranks)]),
        "allgather",
    )
    oracle.same_bits(hvd.broadcast(mine, ranks - 1), given[ranks - 1], "broadcast")
    even = [x[: 70_000 * ranks] for x in given]
    wanted = np.concatenate([even[r][70_000 * me : 70_000 * (me + 1)] for r in range(ranks)])
    oracle.same_bits(hvd.alltoall(mine[: 70_000 * ranks]), wanted, "alltoall")


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"HOROACC_CONTROL": "tcp", "HOROACC_ARENA": "all"}, id="tcp"),
        over_mpi("openmpi", "mpi", {"HOROACC_CONTROL": "mpi", "HOROACC_ARENA": "all"}),
    ],
)
@pytest.mark.ranks(2)
def test_one_host_needs_no_carrier(ranks: int) -> None:
    """Whatever is to carry messages between hosts, ranks that share memory use that."""
    before = hvd.counters()
    for _ in range(3):
        assert hvd.allreduce_(placed(np.ones(5000)), name="shared", op=hvd.Sum)[0] == ranks
    after = hvd.counters()
    assert after["control_messages"] == 0
    assert after["arena_bytes"] > before["arena_bytes"]


@pytest.mark.parametrize("env", DATA_PATHS)
@pytest.mark.parametrize("dtype", oracle.REALS)
@pytest.mark.ranks(2, 4)
def test_special_values(dtype: str, ranks: int) -> None:
    limits = np.finfo(dtype)
    special = np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, limits.smallest_subnormal, -limits.max], dtype
    )
    # Every value of a rank meets every value of the others.
    chosen = np.arange(9001) + 1
    given = [special[chosen // len(special) ** rank % len(special)] for rank in range(ranks)]
    for length in (len(special) ** 2, len(chosen)):
        for op in oracle.OPS.values():
            part = [x[:length] for x in given]
            got = hvd.allreduce_(placed(part[hvd.rank()]), op=op)
            wanted = oracle.reduce(part, op)
            # What a NaN carries means nothing, not even its sign.
            for array in (got, wanted):
                array[np.isnan(array)] = np.nan
            oracle.same_bits(got, wanted, f"{dtype} {op} {length}")


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


@pytest.mark.parametrize("env", [pytest.param({}, id="plain"), *CONTROL_PATHS, *SHM_OVER_MPI])
@pytest.mark.ranks(2, 3, 4)
def test_process_sets(ranks: int) -> None:
    me = hvd.rank()
    others = hvd.add_process_set(list(range(1, ranks)))
    assert others.size() == ranks - 1
    assert others.included() == (me > 0)
    with pytest.raises(ValueError, match="these ranks exists"):
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
