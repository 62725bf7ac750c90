"""Horovod's API for Keras, row by row, with the tests of each row.

As `torch_api/contract_rows.py`; Keras' tests run on 1, 2 and 4 ranks. What all doors have in common
(table 1.1) is tested there.
"""

from __future__ import annotations

from contract_rows import Row

SIZES = frozenset({1, 2, 4})
SEVERAL = SIZES - {1}
_FUNCTIONS = "keras_api/test_keras_functions.py::test_"
_OPTIMIZER = "keras_api/test_keras_optimizer.py::test_"
_WRAPPING = "keras_api/test_keras_wrapping.py::test_"
_SAVING = "keras_api/test_keras_saving.py::test_"
_CALLBACKS = "keras_api/test_keras_callbacks.py::test_"
_ELASTIC = "keras_api/test_keras_elastic.py::test_"
_WHOLE = "keras_api/test_keras_whole.py::test_a_whole_training"
_COMPUTED = "keras_api/test_keras_ahead.py::test_"
_AHEAD = _COMPUTED + "what_is_reduced_ahead_is_not_reduced_again"
_PASSES = _OPTIMIZER + "backward_passes_per_step"
_REFUSED = (_WRAPPING + "refused",)


def _row(
    name: str,
    *tests: str,
    errors: tuple[str, ...] | str = (),
    arguments: tuple[str, ...] = (),
    error_sizes: frozenset[int] = SIZES,
) -> Row:
    return Row("1.4 Keras", name, tests, errors, arguments, SIZES, error_sizes)


ROWS = [
    _row("DistributedOptimizer", _OPTIMIZER + "same_as_one_rank", _OPTIMIZER + "arguments",
         _PASSES, _OPTIMIZER + "process_set", errors=_REFUSED),
    _row("PartialDistributedOptimizer", _OPTIMIZER + "local_layers",
         _OPTIMIZER + "local_layers_in_a_graph", errors=_REFUSED),
    _row("allreduce", _FUNCTIONS + "allreduce"),
    _row("allgather", _FUNCTIONS + "allgather", error_sizes=SEVERAL),
    _row("broadcast", _FUNCTIONS + "broadcast"),
    _row("reducescatter", _FUNCTIONS + "reducescatter"),
    _row("broadcast_global_variables", _FUNCTIONS + "broadcast_global_variables"),
    _row("load_model", _SAVING + "load_model", _SAVING + "load_model_with_objects_of_a_user",
         _WHOLE),
    _row("process sets", _FUNCTIONS + "job", _OPTIMIZER + "process_set",
         errors="those of table 1.1"),
    _row("op constants", _FUNCTIONS + "job", errors=_REFUSED),
    _row("register_local_var", _OPTIMIZER + "local_layers",
         _OPTIMIZER + "local_layers_in_a_graph", errors="any variable may be local"),
    _row("compute_gradients", _COMPUTED + "compute_gradients"),
    _row("get_gradients", _COMPUTED + "compute_gradients"),
    _row("_allreduce", _AHEAD, errors=(_WRAPPING + "ranks_that_disagree_are_told",),
         error_sizes=SEVERAL),
    _row("_aggregate_gradients", _AHEAD, errors=(_WRAPPING + "ranks_that_disagree_are_told",),
         error_sizes=SEVERAL),
    _row("apply_gradients", _AHEAD, _OPTIMIZER + "same_as_one_rank", arguments=(_AHEAD,),
         errors=(_WRAPPING + "ranks_that_disagree_are_told",), error_sizes=SEVERAL),
    _row("_agg_helper", _PASSES, _WHOLE, errors="it is a number to look at"),
    _row("variables", _AHEAD, errors="it is a list to look at"),
    _row("callbacks.BroadcastGlobalVariablesCallback", _CALLBACKS + "broadcast_global_variables",
         _WHOLE, _CALLBACKS + "variables_that_stay_local",
         _CALLBACKS + "model_that_is_built_by_its_first_batch", error_sizes=SEVERAL),
    _row("callbacks.MetricAverageCallback", _CALLBACKS + "metric_average", _WHOLE,
         error_sizes=SEVERAL),
    _row("callbacks.LearningRateScheduleCallback", _CALLBACKS + "learning_rate_schedule", _WHOLE,
         errors=(_CALLBACKS + "rate_of_a_schedule_cannot_be_set",)),
    _row("callbacks.LearningRateWarmupCallback", _CALLBACKS + "learning_rate_warmup", _WHOLE,
         errors=(_CALLBACKS + "rate_of_a_schedule_cannot_be_set",)),
    _row("callbacks.BestModelCheckpoint", _CALLBACKS + "best_model_checkpoint", _WHOLE),
    _row("elastic.KerasState", _ELASTIC + "state", _WHOLE,
         arguments=(_ELASTIC + "state_with_an_optimizer_of_its_own",), error_sizes=SEVERAL),
    _row("elastic.CommitStateCallback", _ELASTIC + "callbacks", _WHOLE),
    _row("elastic.UpdateBatchStateCallback", _ELASTIC + "callbacks", _WHOLE),
    _row("elastic.UpdateEpochStateCallback", _ELASTIC + "callbacks", _WHOLE),
    _row("elastic.run", _ELASTIC + "run_goes_back_to_the_last_commit", _WHOLE),
]  # fmt: skip

NO_GRAPH = {
    "process sets": "the sets are the core's",
    "op constants": "they are numbers",
    "_allreduce": "a method of scripts that step by hand",
    "variables": "it is a list to look at",
    "_aggregate_gradients": "a method of scripts that step by hand",
}
"""What no graph of TensorFlow calls, and why."""
