"""Signatures of Horovod's Keras frontends, and what the two frontends have in common."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from lazy import hvd, on_both, on_tensorflow, ranks

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


def signature(frontend: Any, path: str) -> str:
    found: Any = frontend
    for part in path.split("."):
        found = getattr(found, part)
    shown = []
    for one in inspect.signature(found).parameters.values():
        default = {
            id(frontend.Compression.none): "none", id(frontend.global_process_set): "world"
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
def test_signatures_of_the_other_frontend() -> None:
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
def test_the_other_frontend_and_that_of_tensorflow_train_alike() -> None:
    import keras_training as training

    import horoacc.tensorflow
    import horoacc.tensorflow.keras as other

    for frontend in (other, horoacc.tensorflow):
        model = training.network()
        optimizer = frontend.DistributedOptimizer(
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
