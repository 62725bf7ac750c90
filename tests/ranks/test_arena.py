"""The arena changes where gradients lie, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import training
from paths import CONTROL_PATHS, SHM_OVER_MPI
from pool import Pools

import horoacc.torch as hvd

TRAINING = Path(training.__file__)


@pytest.mark.parametrize("job", training.JOBS)
@pytest.mark.parametrize("size", [2, 3])
def test_same_bits_with_arena_on_and_off(pools: Pools, job: str, size: int) -> None:
    results = {}
    for mode in ("off", "gradients", "all"):
        pool = pools.get(size, "horoacc.torch", {"HOROACC_ARENA": mode})
        results[mode] = pool.run(TRAINING, job, {}, 120)
    assert len({bits for ranks in results.values() for bits, _ in ranks}) == 1
    for mode, ranks in results.items():
        for _, in_place in ranks:
            assert (in_place > 0) == (mode != "off"), f"{in_place} bytes in place with {mode}"


THRESHOLDS = ("0", "65536", "67108864")
PATHS = {
    "arena": {},
    "windows": {"HOROACC_REDUCE_PATH": "windows"},
    "staged": {"HOROACC_REDUCE_PATH": "staged"},
    "control-tcp": CONTROL_PATHS[0].values[0],
}


@pytest.mark.parametrize(
    ("size", "path", "threshold"),
    [
        *((3, path, threshold) for path in PATHS for threshold in THRESHOLDS),
        *((8, path, threshold) for path, threshold in zip(PATHS, THRESHOLDS * 2, strict=False)),
    ],
)
def test_same_bits_by_every_path_and_bucket_size(
    pools: Pools, size: int, path: str, threshold: str
) -> None:
    same_as_private(pools, size, PATHS[path] | {"HOROACC_FUSION_THRESHOLD": threshold})


@pytest.mark.parametrize("env", [*CONTROL_PATHS[1:], *SHM_OVER_MPI])
def test_same_bits_over_mpi(pools: Pools, env: dict[str, str]) -> None:
    same_as_private(pools, 3, env)


def same_as_private(pools: Pools, size: int, env: dict[str, str]) -> None:
    private = pools.get(size, "horoacc.torch", {"HOROACC_ARENA": "off"})
    wanted = private.run(TRAINING, "plain_job", {}, 120)
    got = pools.get(size, "horoacc.torch", env).run(TRAINING, "plain_job", {}, 120)
    assert {bits for bits, _ in got} == {bits for bits, _ in wanted}


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "gradients"}])
@pytest.mark.ranks(2, framework="horoacc.torch")
def test_only_gradients_are_in_the_arena() -> None:
    from horoacc import basics

    def in_arena(tensor: torch.Tensor) -> bool:
        return basics.engine().arena_contains(tensor.data_ptr())

    model = training.network()
    optimizer = training.wrapped(model)
    training.steps(model, optimizer, training.own_batches(1))
    assert not any(in_arena(param) for param in model.parameters())
    assert all(in_arena(param.grad) for param in model.parameters() if param.grad is not None)
    assert not in_arena(torch.empty(400, 300))


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "all"}])
@pytest.mark.ranks(2, framework="horoacc.torch")
def test_large_tensors_are_in_the_arena() -> None:
    from horoacc import basics

    large, small = torch.empty(1 << 16), torch.empty(16)
    assert basics.engine().arena_contains(large.data_ptr())
    assert not basics.engine().arena_contains(small.data_ptr())
    before = hvd.counters()["arena_bytes"]
    hvd.allreduce_(large.fill_(1.0), op=hvd.Sum)
    assert hvd.counters()["arena_bytes"] - before == large.numel() * 4


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "all"}])
@pytest.mark.ranks(1, 2, framework="horoacc.torch")
def test_tensors_outlive_the_engine(ranks: int) -> None:
    large = torch.full((1 << 16,), 3.0)
    hvd.barrier()
    hvd.shutdown()
    assert float(large.sum()) == 3.0 * (1 << 16)
    between = torch.full((1 << 16,), 4.0)
    hvd.init()
    again = torch.full((1 << 16,), 5.0)
    assert float(hvd.allreduce(large, op=hvd.Sum)[5]) == 3.0 * ranks
    assert float(hvd.allreduce(between, op=hvd.Sum)[5]) == 4.0 * ranks
    assert float(hvd.allreduce(again, op=hvd.Sum)[5]) == 5.0 * ranks
    # A forked child has its own copy of what lies in either arena.
    child = os.fork()
    if child == 0:
        large.fill_(7.0)
        again.fill_(7.0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert float(large.sum()) == 3.0 * (1 << 16)
    del large, between
    assert float(again.sum()) == 5.0 * (1 << 16)
