"""Horovod's API for TensorFlow, row by row, with the tests of each row.

As `torch_api/contract_rows.py`; TensorFlow's tests run on 1, 2 and 4 ranks. What both doors have in
common (table 1.1) is tested there.
"""

from __future__ import annotations

from contract_rows import Row

_REDUCTIONS = "ranks/test_tensorflow_reductions.py::"
_EXCHANGES = "ranks/test_tensorflow_exchanges.py::"
_TRAINING = "ranks/test_tensorflow_training.py::"
_SESSIONS = "ranks/test_tensorflow_sessions.py::"
_JOB = "ranks/test_tensorflow_job.py::"
_DATA = "ranks/test_tensorflow_data.py::"
_GRADIENTS = _TRAINING + "test_gradients_of_the_collectives"
_SIZES = frozenset({1, 2, 4})


def _row(name: str, *tests: str, error_sizes: frozenset[int] = _SIZES) -> Row:
    return Row("1.3 horovod.tensorflow", name, tests, sizes=_SIZES, error_sizes=error_sizes)


def _error(condition: str, *tests: str) -> Row:
    return Row("1.7 errors", condition, tests, sizes=_SIZES)


API = [
    _row("allreduce", _REDUCTIONS + "test_allreduce", _REDUCTIONS + "test_arguments_of_allreduce",
         _REDUCTIONS + "test_slices", _REDUCTIONS + "test_adasum",
         _REDUCTIONS + "test_many_at_once_in_one_graph", _GRADIENTS),
    _row("grouped_allreduce", _REDUCTIONS + "test_grouped_allreduce", _GRADIENTS),
    _row("reducescatter", _REDUCTIONS + "test_reducescatter", _GRADIENTS),
    _row("grouped_reducescatter", _REDUCTIONS + "test_grouped_reducescatter", _GRADIENTS),
    _row("allgather", _EXCHANGES + "test_allgather", _GRADIENTS),
    _row("grouped_allgather", _EXCHANGES + "test_grouped_allgather", _GRADIENTS),
    _row("broadcast", _EXCHANGES + "test_broadcast", _GRADIENTS),
    _row("broadcast_", _EXCHANGES + "test_broadcast_in_place",
         _EXCHANGES + "test_reference_variables"),
    _row("alltoall", _EXCHANGES + "test_alltoall", _GRADIENTS),
    _row("join", _EXCHANGES + "test_join", error_sizes=_SIZES - {1}),
    *[_row(name, _EXCHANGES + "test_questions")
      for name in ("rank_op", "local_rank_op", "local_size_op", "size_op",
                   "process_set_included_op")],
    _row("broadcast_variables", _EXCHANGES + "test_broadcast_variables",
         _EXCHANGES + "test_reference_variables"),
    *[_row(name, _EXCHANGES + "test_objects")
      for name in ("broadcast_object", "broadcast_object_fn", "allgather_object")],
    _row("broadcast_global_variables", _SESSIONS + "test_broadcast_global_variables"),
    _row("BroadcastGlobalVariablesHook", _SESSIONS + "test_broadcast_global_variables_hook"),
    _row("DistributedOptimizer", _SESSIONS + "test_optimizer_of_tf1",
         _SESSIONS + "test_backward_passes_per_step_of_tf1", _SESSIONS + "test_adasum_of_tf1"),
    _row("DistributedGradientTape", _TRAINING + "test_distributed_gradient_tape",
         _TRAINING + "test_tape_of_a_process_set", _TRAINING + "test_local_sources",
         _TRAINING + "test_training_gives_the_weights_of_one_rank_with_all_data"),
    _row("PartialDistributedGradientTape", _TRAINING + "test_partial_distributed_gradient_tape"),
    _row("SyncBatchNormalization", _TRAINING + "test_sync_batch_normalization"),
    _row("elastic", _JOB + "test_state_of_variables", _JOB + "test_state_of_a_session",
         _JOB + "test_state_of_a_keras_model", _JOB + "test_run_goes_back_to_the_last_commit"),
    _row("also importable", _JOB + "test_names_beside_the_api"),
    _row("Compression", _REDUCTIONS + "test_arguments_of_allreduce",
         _REDUCTIONS + "test_allreduce_in_eight_bits", _REDUCTIONS + "test_grouped_allreduce"),
    _row("data.compute_service", _DATA + "test_data_comes_from_the_service",
         _DATA + "test_two_dispatchers", _DATA + "test_config_and_errors"),
    _row("jit_compile", _EXCHANGES + "test_xla_is_refused_with_what_to_do"),
]  # fmt: skip

ERRORS = [
    _error("ranks disagree: FailedPreconditionError", _REDUCTIONS + "test_arguments_of_allreduce",
           _EXCHANGES + "test_join"),
    _error("bad argument: InvalidArgumentError", _EXCHANGES + "test_broadcast",
           _EXCHANGES + "test_alltoall", _REDUCTIONS + "test_arguments_of_allreduce"),
    _error("name in flight: InvalidArgumentError", _JOB + "test_a_name_in_flight"),
    _error("reducescatter with another op: AbortedError", _REDUCTIONS + "test_reducescatter"),
    _error("not initialised: FailedPreconditionError", _JOB + "test_init_shutdown_and_init_again"),
    _error("shut down: UnknownError", _JOB + "test_a_rank_leaves"),
    _error("Adasum on a process set, and on any number of ranks: no error here",
           _REDUCTIONS + "test_adasum"),
]  # fmt: skip

ROWS = [*API, *ERRORS]
