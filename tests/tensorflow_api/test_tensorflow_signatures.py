"""Signatures of Horovod's TensorFlow frontend."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

# Of table 1.3, in its order, without what begins with a line of its own there.
DEVICES = ["device_dense", "device_sparse"]
SCALES = ["prescale_factor", "postscale_factor"]
SIGNATURES = {
    "allreduce": ["tensor", "average", *DEVICES, "compression", "op", *SCALES, "name",
                  "process_set", "ignore_name_scope"],
    "grouped_allreduce": ["tensors", "average", *DEVICES, "compression", "op", *SCALES,
                          "process_set", "ignore_name_scope", "name"],
    "reducescatter": ["tensor", "device_dense", "compression", "op", "name", "process_set",
                      "ignore_name_scope", *SCALES],
    "grouped_reducescatter": ["tensors", "device_dense", "compression", "op", "process_set",
                              *SCALES],
    "allgather": ["tensor", "name", "ignore_name_scope", "process_set"],
    "grouped_allgather": ["tensors", "name", "ignore_name_scope", "process_set"],
    "broadcast": ["tensor", "root_rank", "name", "ignore_name_scope", "process_set"],
    "broadcast_": ["variables", "root_rank", "name", "process_set"],
    "alltoall": ["tensor", "splits", "name", "ignore_name_scope", "process_set"],
    "join": [],
    "rank_op": ["name"],
    "local_rank_op": ["name"],
    "local_size_op": ["name"],
    "size_op": ["process_set_id", "name"],
    "process_set_included_op": ["process_set_id", "name"],
    "broadcast_variables": ["variables", "root_rank", "process_set", "inplace"],
    "broadcast_object": ["obj", "root_rank", "session", "name", "process_set"],
    "broadcast_object_fn": ["root_rank", "session", "name", "process_set"],
    "allgather_object": ["obj", "session", "name", "process_set"],
    "broadcast_global_variables": ["root_rank"],
    "BroadcastGlobalVariablesHook": ["root_rank", "device"],
    "DistributedOptimizer": ["optimizer", "name", "use_locking", *DEVICES, "compression",
                             "sparse_as_dense", "backward_passes_per_step", "op",
                             "gradient_predivide_factor", "average_aggregated_gradients",
                             "num_groups", "groups", "process_set", "scale_local_gradients"],
    "DistributedGradientTape": ["gradtape", *DEVICES, "compression", "sparse_as_dense", "op",
                                "gradient_predivide_factor", "num_groups", "groups",
                                "process_set", "scale_local_gradients"],
    "PartialDistributedGradientTape": ["gradtape", *DEVICES, "compression", "sparse_as_dense", "op",
                                       "gradient_predivide_factor", "num_groups", "groups",
                                       "process_set", "local_layers", "scale_local_gradients"],
    "elastic.run": ["func"],
    "elastic.TensorFlowState": ["variables", "session", "kwargs"],
    "elastic.TensorFlowKerasState": ["model", "optimizer", "backend", "kwargs"],
}  # fmt: skip


@pytest.fixture(scope="module")
def frontend() -> Any:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    return importlib.import_module("horoacc.tensorflow")


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_stand_in_horovods_order(frontend: Any, name: str) -> None:
    found = frontend
    for part in name.split("."):
        found = getattr(found, part)
    assert name.partition(".")[0] in frontend.__all__
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(SIGNATURES[name])] == SIGNATURES[name]
