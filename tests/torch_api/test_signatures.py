"""Names, parameters and defaults are Horovod's."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import horoacc
import horoacc.torch as hvd

NONE = hvd.Compression.none
WORLD = hvd.global_process_set
SC = {"prescale_factor": 1.0, "postscale_factor": 1.0}
PSET = {"process_set": WORLD}
CN = {"compression": NONE}
NEEDED = inspect.Parameter.empty
AVERAGE_NAME = {"average": None, "name": None}

TORCH: dict[str, dict[str, Any]] = {
    "init": {"comm": None, "process_sets": None},
    "allreduce": {"tensor": NEEDED, **AVERAGE_NAME, **CN, "op": None, **SC, **PSET},
    "allreduce_async": {"tensor": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "allreduce_": {"tensor": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "allreduce_async_": {"tensor": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "grouped_allreduce": {"tensors": NEEDED, **AVERAGE_NAME, **CN, "op": None, **SC, **PSET},
    "grouped_allreduce_async": {"tensors": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "grouped_allreduce_": {"tensors": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "grouped_allreduce_async_": {"tensors": NEEDED, **AVERAGE_NAME, "op": None, **SC, **PSET},
    "sparse_allreduce_async": {"tensor": NEEDED, "name": NEEDED, "op": NEEDED, **PSET},
    "allgather": {"tensor": NEEDED, "name": None, **PSET},
    "allgather_async": {"tensor": NEEDED, "name": None, **PSET},
    "grouped_allgather": {"tensors": NEEDED, "name": None, **PSET},
    "grouped_allgather_async": {"tensors": NEEDED, "name": None, **PSET},
    "broadcast": {"tensor": NEEDED, "root_rank": NEEDED, "name": None, **PSET},
    "broadcast_async": {"tensor": NEEDED, "root_rank": NEEDED, "name": None, **PSET},
    "broadcast_": {"tensor": NEEDED, "root_rank": NEEDED, "name": None, **PSET},
    "broadcast_async_": {"tensor": NEEDED, "root_rank": NEEDED, "name": None, **PSET},
    "alltoall": {"tensor": NEEDED, "splits": None, "name": None, **PSET},
    "alltoall_async": {"tensor": NEEDED, "splits": None, "name": None, **PSET},
    "reducescatter": {"tensor": NEEDED, "name": None, **CN, "op": hvd.Average, **PSET, **SC},
    "reducescatter_async": {"tensor": NEEDED, "name": None, "op": hvd.Average, **PSET, **SC},
    "grouped_reducescatter": {
        "tensors": NEEDED, "name": None, **CN, "op": hvd.Average, **PSET, **SC,
    },
    "grouped_reducescatter_async": {
        "tensors": NEEDED, "name": None, "op": hvd.Average, **PSET, **SC,
    },
    "barrier": PSET,
    "join": {"device": -1},
    "poll": {"handle": NEEDED},
    "synchronize": {"handle": NEEDED},
    "broadcast_parameters": {"params": NEEDED, "root_rank": NEEDED},
    "broadcast_optimizer_state": {"optimizer": NEEDED, "root_rank": NEEDED, "model": None},
    "broadcast_object": {"obj": NEEDED, "root_rank": 0, "name": None, **PSET},
    "DistributedOptimizer": {
        "optimizer": NEEDED, "named_parameters": None, **CN, "backward_passes_per_step": 1,
        "op": hvd.Average, "gradient_predivide_factor": 1.0, "num_groups": 0, "groups": None,
        "sparse_as_dense": False, **PSET,
    },
    "SyncBatchNorm": {
        "num_features": NEEDED, "eps": 1e-5, "momentum": 0.1, "affine": True,
        "track_running_stats": True, **PSET,
    },
    "start_timeline": {"file_path": NEEDED, "mark_cycles": False},
    "stop_timeline": {},
    "shutdown": {},
    "add_process_set": {"process_set": NEEDED},
    "remove_process_set": {"process_set": NEEDED},
}  # fmt: skip
QUESTIONS = [
    "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
    "is_homogeneous", "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled",
    "gloo_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "nccl_built",
]  # fmt: skip


def shown(function: Any) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", TORCH)
def test_torch_function(name: str) -> None:
    found = shown(getattr(hvd, name))
    assert list(found) == list(TORCH[name])
    assert found == TORCH[name]
    assert inspect.getdoc(getattr(hvd, name))
    assert name in hvd.__all__


@pytest.mark.parametrize("name", [n for n in TORCH if hasattr(horoacc, n)])
def test_neutral_function(name: str) -> None:
    assert shown(getattr(horoacc, name)) == TORCH[name]


def test_neutral_frontend_has_everything_that_knows_no_framework() -> None:
    missing = {n for n in TORCH if not hasattr(horoacc, n)}
    assert missing == {
        "sparse_allreduce_async", "broadcast_parameters", "broadcast_optimizer_state",
        "DistributedOptimizer", "SyncBatchNorm",
    }  # fmt: skip


@pytest.mark.parametrize("module", ["arrays", "basics", "builds", "dtypes", "objects"])
def test_names_are_loaded_from_the_modules_that_list_them(module: str) -> None:
    listed = set(importlib.import_module(f"horoacc.{module}").__all__)
    assert {n for n, home in horoacc._HOME_OF.items() if home == module} - {"init"} == listed


@pytest.mark.parametrize("module", [horoacc, hvd])
@pytest.mark.parametrize("name", QUESTIONS)
def test_question(module: Any, name: str) -> None:
    assert shown(getattr(module, name)) == {}
    assert name in module.__all__


def test_allgather_object_starts_as_horovods() -> None:
    # Horovod has no process_set here; a further argument with a default harms no caller.
    assert list(shown(hvd.allgather_object))[:2] == ["obj", "name"]


def test_constants() -> None:
    numbers = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert numbers == [0, 1, 2, 3, 4, 5]
    assert hvd.global_process_set.process_set_id == 0
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert horoacc.HorovodInternalError is hvd.HorovodInternalError


def test_methods_of_the_optimizer() -> None:
    import torch

    hvd.init()
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    assert shown(optimizer.step) == {"closure": None}
    assert shown(optimizer.set_backward_passes_per_step) == {"passes": NEEDED}
    assert shown(optimizer.zero_grad) == {"set_to_none": True}
    assert shown(optimizer.synchronize) == shown(optimizer.skip_synchronize) == {}
    hvd.shutdown()


def test_neutral_frontend_imports_no_framework() -> None:
    program = (
        "import sys, horoacc, horoacc.launcher.main\n"
        "print('numpy' in sys.modules)\n"
        "print([name for name in horoacc.__all__ if getattr(horoacc, name, None) is None])\n"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'jax', 'mpi4py') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["False", "[]", "[]"]
    assert set(horoacc.__all__) <= set(dir(horoacc))
    assert not hasattr(horoacc, "no_such_name")
