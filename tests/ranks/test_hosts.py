"""Jobs whose ranks do not all share memory: parts of the pool are as if on hosts of their own.

Most bodies are those of the other modules, bit for bit against the same oracle: in canonical order
a result depends on no placement.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import oracle
import pytest
import test_collectives
import test_errors
import test_join
from paths import MPIRUNS, has_plugin

import horoacc as hvd

CANONICAL = {"HOROACC_REDUCTION": "canonical"}


def simulated(hosts: str, **more: str) -> Any:
    """Ranks on hosts of so many each, as a value of `env`."""
    ranks = sum(int(part) for part in hosts.split("+"))
    return pytest.param(
        CANONICAL | {"HOROACC_SIMULATED_HOSTS": hosts} | more, id="-".join([hosts, *more.values()]),
        marks=pytest.mark.only_ranks(ranks),
    )  # fmt: skip


def over_mpi(flavour: str, hosts: str) -> Any:
    """The same, with MPI for control and data."""
    mpirun = MPIRUNS[flavour]
    ranks = sum(int(part) for part in hosts.split("+"))
    missing = not mpirun.exists() or not has_plugin(flavour)
    reason = f"{flavour} is not installed or has no plug-in"
    return pytest.param(
        CANONICAL | {"HOROACC_SIMULATED_HOSTS": hosts, "HOROACC_CONTROL": "mpi",
                     "HOROACC_TEST_MPIRUN": str(mpirun)}, id=f"{hosts}-{flavour}",
        marks=[pytest.mark.only_ranks(ranks), pytest.mark.skipif(missing, reason=reason)],
    )  # fmt: skip


FLAT = ("1+1", "1+1+1+1")
SHARED = ("2+2", "2+1", "2+2+2")
HOSTS = [simulated(hosts) for hosts in (*SHARED, *FLAT)]
MPI = [over_mpi("openmpi", "2+2"), over_mpi("mpich", "2+1")]
EVERYWHERE = [*HOSTS, *MPI]
SIZES = (2, 3, 4, 6)
# A test for each type where hosts are shared and where they are not; elsewhere one for all types.
TYPED = [
    pytest.param(*path.values, dtype, id=f"{path.id}-{dtype}", marks=path.marks)
    for path in (simulated("2+2"), simulated("1+1"))
    for dtype in oracle.DTYPES
]
OTHER_SHAPES = [simulated(hosts) for hosts in (*SHARED, *FLAT) if hosts not in ("2+2", "1+1")]
OTHERS_OVER_MPI = [
    over_mpi("openmpi", "1+1"), over_mpi("mpich", "1+1+1+1"), over_mpi("openmpi", "2+2+2"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "dtype"), TYPED)
@pytest.mark.ranks(*SIZES)
def test_allreduce(dtype: str) -> None:
    test_collectives.test_allreduce(dtype)


@pytest.mark.parametrize(("env", "dtype"), [one for one in TYPED if one.values[1] != "bool"])
@pytest.mark.ranks(*SIZES)
def test_scales_in_place(dtype: str) -> None:
    test_collectives.test_scales_in_place(dtype)


@pytest.mark.parametrize(("env", "dtype"), TYPED)
@pytest.mark.ranks(*SIZES)
def test_exchanges(dtype: str) -> None:
    test_collectives.test_allgather(dtype)
    test_collectives.test_broadcast(dtype)
    test_collectives.test_alltoall(dtype)
    if dtype != "bool":
        test_collectives.test_reducescatter(dtype)


@pytest.mark.parametrize("env", [*OTHER_SHAPES, *OTHERS_OVER_MPI, *MPI])
@pytest.mark.ranks(*SIZES)
def test_every_type_on_every_shape(ranks: int) -> None:
    # Six ranks take every second type, of each kind at least one, and over MPI the others.
    others = os.environ.get("HOROACC_CONTROL") == "mpi"
    for dtype in oracle.DTYPES if ranks < 6 else oracle.DTYPES[others::2]:
        test_collectives.test_allreduce(dtype)
        if dtype != "bool":
            test_collectives.test_scales_in_place(dtype)
        test_exchanges(dtype)


@pytest.mark.parametrize("env", EVERYWHERE)
@pytest.mark.ranks(*SIZES)
def test_groups_order_and_sets(ranks: int) -> None:
    test_collectives.test_groups_of_mixed_tensors(ranks)
    test_collectives.test_any_order_of_submission(ranks)
    test_collectives.test_process_sets(ranks)
    test_collectives.test_objects(ranks)


@pytest.mark.parametrize("env", EVERYWHERE)
@pytest.mark.ranks(2, 3, 4)
def test_large_tensors(ranks: int) -> None:
    test_collectives.test_large_tensors(ranks)


@pytest.mark.parametrize("env", EVERYWHERE)
@pytest.mark.ranks(*SIZES)
def test_disagreements_and_bad_arguments(ranks: int) -> None:
    for how in test_errors.KINDS:
        for table in ("cold", "warm"):
            test_errors.test_disagreement(how, table)
    test_errors.test_collective_differs(ranks)
    test_errors.test_bad_argument_of_one_rank(ranks)


@pytest.mark.parametrize("env", [*HOSTS[:3], *MPI])
@pytest.mark.ranks(*SIZES)
def test_uneven_steps(ranks: int) -> None:
    test_join.test_uneven_steps(("float32", "bool"))
    test_join.test_calls_in_flight_are_carried_out(ranks)
    if 6 % ranks == 0:  # what its alltoall needs
        test_join.test_other_collectives_name_the_joined_ranks(ranks)


@pytest.mark.parametrize("env", [simulated("2+2"), simulated("2+1")])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.ranks(3, 4, framework="horoacc.torch")
def test_adasum(dtype: str) -> None:
    import test_adasum  # noqa: PLC0415 - torch is not for the other pools

    test_adasum.test_formula(dtype)


@pytest.mark.parametrize("env", [simulated("2+2"), simulated("2+1")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.ranks(3, 4, framework="horoacc.torch")
def test_torch_types(dtype: str) -> None:
    import test_torch_collectives  # noqa: PLC0415 - torch is not for the other pools

    test_torch_collectives.test_every_type(dtype)


ALGORITHMS = ("ring", "double_tree", "trees", "hierarchical", "hierarchical_tree", "cpu_reduce",
              "cpu_reduce_tree", "canonical")  # fmt: skip


@pytest.mark.parametrize(
    "env",
    [
        *(simulated("2+2", HOROACC_ALGORITHM=name) for name in ALGORITHMS),
        simulated("3+1", HOROACC_REDUCTION="auto"),
        simulated("2+1", HOROACC_REDUCTION="fast"),
        simulated("1+1+1+1", HOROACC_REDUCTION="fast"),
    ],
)
@pytest.mark.ranks(3, 4)
def test_other_orders_of_summation(ranks: int) -> None:
    """What adds in another order is right to rounding; integers are exact."""
    for length in (1, 1003, 300_000):
        whole = [np.arange(length) % 97 * (rank + 1) for rank in range(ranks)]
        mine = whole[hvd.rank()]
        got = hvd.allreduce(mine, name=f"whole.{length}", op=hvd.Sum)
        np.testing.assert_array_equal(got, np.sum(whole, axis=0))
        given = [oracle.values("float32", (length,), rank, "any order") for rank in range(ranks)]
        got = hvd.allreduce(given[hvd.rank()], name=f"real.{length}", op=hvd.Average)
        wanted = np.mean(np.asarray(given, np.float64), axis=0)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
    shard = hvd.reducescatter(np.ones((2 * ranks + 1, 3)), op=hvd.Sum)
    assert (shard == ranks).all()


@pytest.mark.parametrize(
    "env", [simulated(hosts, HOROACC_REDUCTION="auto") for hosts in ("2+2", "1+1+1+1")]
)
@pytest.mark.ranks(4)
def test_order_of_summation_by_default(ranks: int) -> None:
    """On such hosts: the bits of one host; of 16 bits the same tree, rounded on the way."""
    for dtype in ("float32", "complex128", "int8"):
        test_collectives.test_allreduce(dtype)
        test_collectives.test_scales_in_place(dtype)
        test_collectives.test_reducescatter(dtype)
    long = [oracle.values("float16", (70_001,), rank, "halves") for rank in range(ranks)]
    short = [values[-257:] for values in long]
    me = hvd.rank()
    got = hvd.allreduce(long[me], name="alone", op=hvd.Sum)
    wanted = oracle.reduce(long, hvd.Sum)
    np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=4e-3, atol=4e-3)
    # Neither the place in a vector, nor what else is in a bucket, nor the size shows in the bits.
    for others in (0, 1, 1000):
        bucket = hvd.grouped_allreduce([np.ones(others, np.float16), short[me]], op=hvd.Sum)
        oracle.same_bits(bucket[1], got[-257:], f"beside {others} others")


@pytest.mark.parametrize(
    "env",
    [
        *(simulated(hosts, HOROACC_REDUCTION="auto") for hosts in ("2+1", "2+2", "1+1+1+1")),
        simulated("2+2", HOROACC_REDUCTION="fast"),
        simulated("2+2", HOROACC_ALGORITHM="ring"),
    ],
)
@pytest.mark.ranks(3, 4)
def test_an_average_fits_though_the_sum_does_not(ranks: int) -> None:
    for length in (5, 3000, 100_001):
        given = [
            np.linspace(40_000, 60_000, length, dtype=np.float16) - 1000 * rank
            for rank in range(ranks)
        ]
        mine = given[hvd.rank()]
        wanted = np.mean(np.asarray(given, np.float64), axis=0)
        got = hvd.allreduce(mine, name=f"halves.{length}", op=hvd.Average)
        np.testing.assert_allclose(got.astype(float), wanted, rtol=4e-3)
        twice = hvd.allreduce(
            mine, name=f"scaled.{length}", op=hvd.Average, prescale_factor=0.5,
            postscale_factor=2.0,
        )  # fmt: skip
        np.testing.assert_allclose(twice.astype(float), wanted, rtol=4e-3)


@pytest.mark.parametrize("env", [simulated("2+2"), simulated("2+1")])
@pytest.mark.ranks(3, 4)
def test_sets_across_hosts_and_inside_one(ranks: int) -> None:
    """A set inside host 0, one of the hosts' first ranks, and all ranks but one."""
    me = hvd.rank()
    for members in ([0, 1], [0, 2], list(range(1, ranks))):
        some = hvd.add_process_set(members)
        if me in members:
            for _ in range(3):
                got = hvd.allreduce(np.array([float(me)]), op=hvd.Sum, process_set=some)
                assert got[0] == sum(members)
                rows = hvd.allgather(np.full((me, 2), me), process_set=some)
                assert rows[:, 0].tolist() == [rank for rank in members for _ in range(rank)]
        assert hvd.remove_process_set(some)
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == ranks


@pytest.mark.parametrize("env", [simulated("1+1"), simulated("2+1")])
@pytest.mark.ranks(2, 3, framework="horoacc.torch")
def test_training() -> None:
    """DistributedOptimizer gives what one rank with all the data gives."""
    import test_optimizer  # noqa: PLC0415 - torch is not for the other pools
    import test_optimizer_steps  # noqa: PLC0415

    test_optimizer_steps.test_zero_grad(set_to_none=True)
    test_optimizer_steps.test_clipping_sees_reduced_gradients()
    test_optimizer.test_closure_is_reduced_each_time("strong_wolfe")
    test_optimizer.test_parameter_without_gradient_on_one_rank()
    test_optimizer.test_sparse_gradients(dense=False)


@pytest.mark.ranks(2)
def test_tuning_waits_for_the_last_rank() -> None:
    """A rank that is through early, as a broadcast's root is, does not say how long it took."""
    from horoacc import tune  # noqa: PLC0415 - what `horoaccrun tune` runs

    slow = 0.03
    seconds = tune.until_the_last(lambda: time.sleep(slow if hvd.rank() == 1 else 0), 0.001)
    assert seconds >= slow
