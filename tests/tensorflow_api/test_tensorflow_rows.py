"""Every row of Horovod's table for TensorFlow has tests that exist, and runs where it should."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch_api"))

from row_texts import faults, gaps
from tensorflow_rows import API, ROWS

TESTS = Path(__file__).resolve().parents[1]

# Of table 1.3, in its order, without what begins with a line of its own there.
DEVICES = ["device_dense", "device_sparse"]
SCALES = ["prescale_factor", "postscale_factor"]
REQUIRED = {"tensor", "tensors", "root_rank", "obj", "variables", "optimizer", "gradtape", "model"}
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
def door() -> Any:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    return importlib.import_module("horoacc.tensorflow")


# What a row's tests need not have, and why.
NOT_BOTH = {
    "broadcast_object": "it works now, with a graph as without",
    "broadcast_object_fn": "it works now, with a graph as without",
    "allgather_object": "it works now, with a graph as without",
    "also importable": "no op is behind these names",
    "data.compute_service": "a dataset's functions are graphs, and none of the ops is in them",
}
ERRORS_ONLY = {"jit_compile": "nothing of it works"}
NO_ARGUMENT = {
    "join": "it has none",
    "elastic": "a state's values are its arguments",
    "Compression": "it is an argument",
    "jit_compile": "it is an argument",
    "data.compute_service": "it is a module; its functions are called with theirs",
}


@functools.cache
def bodies(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((TESTS / file).read_text())
    shared = ast.parse((TESTS / "ranks/tensorflow_calls.py").read_text())
    return {
        node.name: node for node in [*shared.body, *tree.body] if isinstance(node, ast.FunctionDef)
    }


def code_of(test: str) -> list[ast.FunctionDef]:
    """A test, with the functions of its module that it uses."""
    file, _, name = test.partition("::")
    known = bodies(file)
    found: dict[str, ast.FunctionDef] = {}
    left = [name]
    while left:
        one = left.pop()
        if one in known and one not in found:
            found[one] = known[one]
            left += [node.id for node in ast.walk(known[one]) if isinstance(node, ast.Name)]
    return list(found.values())


def lacks(row: Any) -> list[str]:
    """What the tests of a row lack, as far as their text tells."""
    code = [node for test in row.tests for node in code_of(test)]
    text = "\n".join(ast.unparse(node) for node in code)
    missing = []
    if not re.search(r"assert|same\(", text):
        missing.append("a value")
    if row.table.startswith("1.7"):
        _, _, kind = row.name.partition(": ")
        if kind.endswith("Error") and f"tf.errors.{kind}" not in text:
            missing.append(f"tf.errors.{kind}")
        return missing
    if row.name.isidentifier() and row.name in SIGNATURES and f"hvd.{row.name}" not in text:
        missing.append("its name")
    if "pytest.raises(" not in text:
        missing.append("an error")
    both = r"in_both\(|tf\.function|tf\.Graph\(|session"
    if row.name not in NOT_BOTH and not re.search(both, text):
        missing.append("a graph")
    # By its name, or as what a helper was given.
    callers = {f"hvd.{row.name}", "call", "make", "way", row.name}
    given = [
        node for part in code for node in ast.walk(part)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in callers
        and (node.keywords or len(node.args) > 1)
    ]  # fmt: skip
    if row.name not in NO_ARGUMENT and row.name in SIGNATURES and not given:
        missing.append("an argument that is not the default")
    return missing


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Any) -> None:
    assert faults(row) == []
    assert lacks(row) == []
    if row in API and row.name not in ERRORS_ONLY:
        assert gaps(row, set(SIGNATURES.get(row.name, ())) - REQUIRED) == []


def test_what_a_row_lacks_is_found() -> None:
    objects = "ranks/test_tensorflow_exchanges.py::test_questions"
    row = dataclasses.replace(ROWS[0], tests=(objects,))
    assert "its name" in lacks(row)
    silent = dataclasses.replace(ROWS[0], tests=("ranks/tensorflow_calls.py::wanted",))
    assert {"a value", "an error", "a graph", "its name"} <= set(lacks(silent))
    exempt = {*NOT_BOTH, *NO_ARGUMENT, *ERRORS_ONLY}
    assert exempt <= {row.name for row in API}


def test_every_name_of_the_door_has_a_row(door: Any) -> None:
    rows = {row.name for row in API}
    common = set(__import__("horoacc.torch").torch.__all__)
    assert set(door.__all__) - common - rows == set()
    assert {row.name for row in API} >= {name.partition(".")[0] for name in SIGNATURES}


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_stand_in_horovods_order(door: Any, name: str) -> None:
    found = door
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters)
    assert parameters[: len(SIGNATURES[name])] == SIGNATURES[name]
