"""Horovod's table of its Keras doors: every row has tests that exist, and its own signature."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from lazy import hvd, on_both, on_tensorflow, ranks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch_api"))

from keras_rows import NO_GRAPH, ROWS
from row_texts import TESTS, faults, gaps, module, parts, sizes


def defaults(row: Any) -> set[str]:
    """The parameters with defaults of what a row is about."""
    texts = (one[row.name] for one in (SIGNATURES, OF_TENSORFLOW) if row.name in one)
    return {word for text in texts for word in re.findall(r"(\w+)=", text)}


def on_tensorflow_in_graphs(row: Any) -> set[int]:
    """The numbers of ranks on which a row's tests have a graph of TensorFlow."""
    found: set[int] = set()
    for test in row.tests:
        file, _, name = test.partition("::")
        (node,) = (one for one in module(file).body if getattr(one, "name", "") == name)
        assert isinstance(node, ast.FunctionDef)
        text = "".join(ast.unparse(part) for part in parts(file, name, set()))
        if not re.search(r"fit\(|in_both\(|tf\.function|tf\.Graph", text):
            continue
        of_file = [
            one.value for one in module(file).body
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
        ]  # fmt: skip
        marks = " ".join(ast.unparse(mark) for mark in [*node.decorator_list, *of_file])
        on = sizes(node.decorator_list) or sizes(of_file)
        if "mostly_on_torch" in marks:
            on &= {2}
        elif "on_both" not in marks and "on_tensorflow" not in marks:
            on = frozenset()
        found |= on
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Any) -> None:
    assert faults(row) == []
    assert gaps(row, defaults(row)) == []
    if row.name not in NO_GRAPH:
        assert on_tensorflow_in_graphs(row) >= row.sizes


def test_what_rows_leave_out_is_found() -> None:
    row = ROWS[0]
    few = ("keras_api/test_keras_wrapping.py::test_optimizer_of_a_user",)
    few_faults = faults(dataclasses.replace(row, tests=few))
    assert few_faults == ["its tests run on [2] ranks"]
    assert on_tensorflow_in_graphs(dataclasses.replace(row, tests=few)) == {2}
    silent = dataclasses.replace(row, tests=few, errors=few)
    assert gaps(silent, {"op"}) == [
        "values are compared on [2] ranks", "an error is seen on [] ranks",
        "one of ['op'] is passed on [] ranks",
    ]  # fmt: skip
    assert {row.name for row in ROWS} >= set(NO_GRAPH)
    assert {row.name for row in ROWS} >= set(SIGNATURES)
    assert (TESTS / "keras_api").is_dir()


DEVICES = "device_dense='', device_sparse='', "
SCALES = "prescale_factor=1.0, postscale_factor=1.0, "
GRADIENTS = "sparse_as_dense=False, gradient_predivide_factor=1.0, op=0, "
PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False, "
SIGNATURES = {
    "DistributedOptimizer": f"optimizer, name=None, {DEVICES}compression=none, {GRADIENTS}"
    "num_groups=0, groups=None",
    "PartialDistributedOptimizer": f"optimizer, name=None, {DEVICES}compression=none, {GRADIENTS}"
    f"{PASSES}groups=None, process_set=world, local_layers=None, scale_local_gradients=True",
    "allreduce": f"value, name=None, average=True, {SCALES}op=None, compression=none",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=0",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=none, "
    "legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, "
    "end_epoch=None, staircase=True, momentum_correction=True, steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, "
    "momentum_correction=True, steps_per_epoch=None, verbose=0",
    "callbacks.BestModelCheckpoint": "monitor='val_loss', verbose=0, mode='auto', "
    "save_freq='epoch'",
    "elastic.KerasState": "model, optimizer=None, kwargs",
    "elastic.CommitStateCallback": "state, batches_per_commit=1",
    "elastic.UpdateBatchStateCallback": "state",
    "elastic.UpdateEpochStateCallback": "state",
    "elastic.run": "func",
}
OF_TENSORFLOW = SIGNATURES | {
    "DistributedOptimizer": f"optimizer, name=None, {DEVICES}compression=none, {GRADIENTS}"
    f"{PASSES}num_groups=0, groups=None, process_set=world, scale_local_gradients=True",
    "allreduce": f"value, name=None, average=None, {SCALES}op=None, compression=none",
    "callbacks.BestModelCheckpoint": "monitor='val_loss', verbose=0, save_weights_only=False, "
    "mode='auto', save_freq='epoch'",
}


def signature(door: Any, path: str) -> str:
    found: Any = door
    for part in path.split("."):
        found = getattr(found, part)
    shown = []
    for one in inspect.signature(found).parameters.values():
        default = {
            id(door.Compression.none): "none", id(door.global_process_set): "world"
        }.get(id(one.default), repr(one.default))  # fmt: skip
        shown.append(one.name if one.default is one.empty else f"{one.name}={default}")
    return ", ".join(shown)


@on_both
@ranks(1)
def test_signatures() -> None:
    """More may follow Horovod's arguments, but not stand between them."""
    for path, wanted in SIGNATURES.items():
        assert signature(hvd, path).startswith(wanted), path


@on_tensorflow
@ranks(1)
def test_signatures_of_the_other_door() -> None:
    import horoacc.tensorflow.keras as other

    for path, wanted in OF_TENSORFLOW.items():
        assert signature(other, path).startswith(wanted), path
    assert set(hvd.__all__) == set(other.__all__)
    assert other.callbacks.MetricAverageCallback is hvd.callbacks.MetricAverageCallback
    assert float(other.allreduce(2.0, average=True)) == 2.0
    checkpoint = other.callbacks.BestModelCheckpoint("loss", 0, True)
    assert checkpoint.save_weights_only
    with pytest.raises(ValueError, match="supersedes average"):
        other.allreduce(2.0, average=True, op=other.Sum)


@on_tensorflow
@ranks(2)
def test_the_other_door_and_that_of_tensorflow_train_alike() -> None:
    import keras_training as training

    import horoacc.tensorflow
    import horoacc.tensorflow.keras as other

    for door in (other, horoacc.tensorflow):
        model = training.network()
        optimizer = door.DistributedOptimizer(
            training.sgd(), backward_passes_per_step=2, average_aggregated_gradients=True
        )
        training.fit(model, optimizer, training.share(4))
        training.close(model, training.learned_alone(4, passes=2))


@on_both
@ranks(1)
def test_backends_without_collectives_say_what_is_missing() -> None:
    from horoacc.keras import backend

    find: Any = backend.current.__wrapped__
    given = backend.keras.backend.backend
    backend.keras.backend.backend = lambda: "jax"
    try:
        with pytest.raises(ImportError, match=re.escape("compiled steps")):
            find()
    finally:
        backend.keras.backend.backend = given
