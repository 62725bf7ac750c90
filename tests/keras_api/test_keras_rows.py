"""Horovod's table of its Keras doors: every row has tests that exist, and its own signature."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from lazy import hvd, on_both, on_tensorflow, ranks

HERE = Path(__file__).parent
OPTIMIZER = "test_keras_optimizer.py::"
FUNCTIONS = "test_keras_functions.py::"
CALLBACKS = "test_keras_callbacks.py::"
ELASTIC = "test_keras_elastic.py::"

ROWS: dict[str, tuple[str, ...]] = {
    "DistributedOptimizer": (
        OPTIMIZER + "test_same_as_one_rank", OPTIMIZER + "test_arguments",
        OPTIMIZER + "test_backward_passes_per_step", OPTIMIZER + "test_process_set",
        "test_keras_wrapping.py::test_refused",
    ),
    "PartialDistributedOptimizer": (
        OPTIMIZER + "test_local_layers", "test_keras_wrapping.py::test_refused",
    ),
    "allreduce": (FUNCTIONS + "test_allreduce",),
    "allgather": (FUNCTIONS + "test_allgather",),
    "broadcast": (FUNCTIONS + "test_broadcast",),
    "reducescatter": (FUNCTIONS + "test_reducescatter",),
    "broadcast_global_variables": (FUNCTIONS + "test_broadcast_global_variables",),
    "load_model": ("test_keras_saving.py::test_load_model",
                   "test_keras_saving.py::test_load_model_with_objects_of_a_user"),
    "process sets": (FUNCTIONS + "test_job", OPTIMIZER + "test_process_set"),
    "op constants": (FUNCTIONS + "test_job", "test_keras_wrapping.py::test_refused"),
    "register_local_var": (OPTIMIZER + "test_local_layers",),
    "compute_gradients": (OPTIMIZER + "test_compute_gradients",),
    "_allreduce": (OPTIMIZER + "test_what_is_reduced_ahead_is_not_reduced_again",),
    "_aggregate_gradients": (OPTIMIZER + "test_what_is_reduced_ahead_is_not_reduced_again",),
    "_agg_helper": (OPTIMIZER + "test_backward_passes_per_step",),
    "variables": (OPTIMIZER + "test_what_is_reduced_ahead_is_not_reduced_again",),
    "BroadcastGlobalVariablesCallback": (
        CALLBACKS + "test_broadcast_global_variables", CALLBACKS + "test_variables_that_stay_local",
        CALLBACKS + "test_model_that_is_built_by_its_first_batch",
    ),
    "MetricAverageCallback": (CALLBACKS + "test_metric_average",),
    "LearningRateScheduleCallback": (CALLBACKS + "test_learning_rate_schedule",),
    "LearningRateWarmupCallback": (CALLBACKS + "test_learning_rate_warmup",),
    "BestModelCheckpoint": (CALLBACKS + "test_best_model_checkpoint",),
    "KerasState": (ELASTIC + "test_state",),
    "CommitStateCallback": (ELASTIC + "test_callbacks",),
    "UpdateBatchStateCallback": (ELASTIC + "test_callbacks",),
    "UpdateEpochStateCallback": (ELASTIC + "test_callbacks",),
    "elastic.run": (ELASTIC + "test_run_goes_back_to_the_last_commit",),
}  # fmt: skip


def functions_of(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS)
def test_row_has_tests(row: str) -> None:
    assert ROWS[row]
    for test in ROWS[row]:
        file, _, function = test.partition("::")
        assert function in functions_of(file), test


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
        training.close(model, training.alone(4, passes=2))


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
