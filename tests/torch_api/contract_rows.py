"""Horovod's API for PyTorch, row by row, with the tests of each row.

A test is named by its file in `tests/` and its function. `test_contract_rows.py` checks that every
row has tests, that they exist, and that together they are marked for 1, 2, 3 and 4 ranks where the
row says so; what they assert is not checked. Signatures are those of
`torch_api/test_signatures.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row of Horovod's tables."""

    table: str
    name: str
    tests: tuple[str, ...]
    everywhere: bool = True
    """Whether the tests run on all of `sizes` ranks; else what they check does not depend on it."""
    sizes: frozenset[int] = frozenset({1, 2, 3, 4})


_REDUCTIONS = "ranks/test_contract_reductions.py::"
_EXCHANGES = "ranks/test_contract_exchanges.py::"
_OPTIMIZER = "ranks/test_contract_optimizer.py::"
_JOB = "ranks/test_contract_job.py::"
_GRADIENTS = "ranks/test_torch_collectives.py::test_gradients"
_NAMES = "torch_api/test_horovod_names.py::"
_ELASTIC = "ranks/test_elastic.py::"
_STATES = "ranks/test_elastic_states.py::"
_SAMPLER = "ranks/test_elastic_sampler.py::"
_JOIN = "ranks/test_join.py::"


def _job(*names: str, test: str) -> list[Row]:
    return [Row("1.1 basics", name, (_JOB + test,)) for name in names]


BASICS = [
    Row("1.1 basics", "init", (
        _JOB + "test_init_shutdown_and_init_again",
        "launcher/test_engine_start.py::test_every_form_of_init",
        "launcher/test_engine_start.py::test_some_of_the_ranks_need_mpi",
    )),
    *_job("shutdown", "is_initialized", test="test_init_shutdown_and_init_again"),
    *_job("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous",
          test="test_places"),
    *_job("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
          "ddl_built", "ccl_built", "cuda_built", "rocm_built", "nccl_built",
          test="test_questions_about_the_build"),
    *_job("start_timeline", "stop_timeline", test="test_timeline"),
    *_job("Average", "Sum", "Min", "Max", "Product", test="test_reductions_have_horovods_numbers"),
    Row("1.1 basics", "Adasum", (
        _JOB + "test_reductions_have_horovods_numbers",
        "ranks/test_adasum.py::test_formula",
        "ranks/test_adasum.py::test_special_vectors",
        "ranks/test_adasum.py::test_refused",
    )),
    Row("1.1 basics", "ProcessSet", (
        _JOB + "test_process_set", "launcher/test_engine_start.py::test_every_form_of_init",
    )),
    *_job("global_process_set", test="test_process_set"),
    *_job("add_process_set", "remove_process_set", test="test_add_and_remove_process_sets"),
    Row("1.1 basics", "Compression", (
        _JOB + "test_compression",
        "ranks/test_compression.py::test_compressor_of_a_user",
        "ranks/test_compression.py::test_allreduce_in_eight_bits",
        "ranks/test_compression.py::test_refused",
    )),
    *_job("HorovodInternalError", "HostsUpdatedInterrupt", "HorovodVersionMismatchError",
          test="test_errors_have_horovods_types"),
    Row("1.1 basics", "internals that tools import", (
        _NAMES + "test_name_is_the_same_object", _NAMES + "test_basics_object",
        _NAMES + "test_small_functions", _NAMES + "test_threads",
    ), everywhere=False),
]  # fmt: skip


def _torch(name: str, *tests: str) -> Row:
    return Row("1.2 horovod.torch", name, tests)


TORCH = [
    _torch("allreduce", _REDUCTIONS + "test_allreduce", _GRADIENTS),
    _torch("allreduce_async", _REDUCTIONS + "test_allreduce_async"),
    _torch("allreduce_", _REDUCTIONS + "test_allreduce_in_place"),
    _torch("allreduce_async_", _REDUCTIONS + "test_allreduce_async_in_place"),
    _torch("grouped_allreduce", _REDUCTIONS + "test_grouped_allreduce", _GRADIENTS),
    _torch("grouped_allreduce_async", _REDUCTIONS + "test_grouped_allreduce_async"),
    _torch("grouped_allreduce_", _REDUCTIONS + "test_grouped_allreduce_in_place"),
    _torch("grouped_allreduce_async_", _REDUCTIONS + "test_grouped_allreduce_async_in_place"),
    _torch("sparse_allreduce_async", _REDUCTIONS + "test_sparse_allreduce_async"),
    _torch("allgather", _EXCHANGES + "test_allgather", _GRADIENTS),
    _torch("allgather_async", _EXCHANGES + "test_allgather_async"),
    _torch("grouped_allgather", _EXCHANGES + "test_grouped_allgather", _GRADIENTS),
    _torch("grouped_allgather_async", _EXCHANGES + "test_grouped_allgather_async"),
    _torch("broadcast", _EXCHANGES + "test_broadcast", _GRADIENTS),
    _torch("broadcast_async", _EXCHANGES + "test_broadcast_async"),
    _torch("broadcast_", _EXCHANGES + "test_broadcast_in_place"),
    _torch("broadcast_async_", _EXCHANGES + "test_broadcast_async_in_place"),
    _torch("alltoall", _EXCHANGES + "test_alltoall", _GRADIENTS),
    _torch("alltoall_async", _EXCHANGES + "test_alltoall_async"),
    _torch("reducescatter", _REDUCTIONS + "test_reducescatter", _GRADIENTS),
    _torch("reducescatter_async", _REDUCTIONS + "test_reducescatter_async"),
    _torch("grouped_reducescatter", _REDUCTIONS + "test_grouped_reducescatter", _GRADIENTS),
    _torch("grouped_reducescatter_async", _REDUCTIONS + "test_grouped_reducescatter_async"),
    _torch(
        "join",
        _JOIN + "test_uneven_steps",
        _JOIN + "test_other_collectives_name_the_joined_ranks",
        _JOIN + "test_alone",
        _JOIN + "test_gradients_of_the_last_rank_are_divided_by_all",
    ),
    _torch("barrier", _EXCHANGES + "test_barrier"),
    _torch("poll", _EXCHANGES + "test_poll_and_synchronize"),
    _torch("synchronize", _EXCHANGES + "test_poll_and_synchronize"),
    _torch("broadcast_parameters", _EXCHANGES + "test_broadcast_parameters"),
    _torch("broadcast_optimizer_state", _EXCHANGES + "test_broadcast_optimizer_state"),
    _torch(
        "broadcast_object",
        _EXCHANGES + "test_broadcast_object",
    ),
    _torch(
        "allgather_object",
        _EXCHANGES + "test_allgather_object",
    ),
    _torch(
        "DistributedOptimizer",
        _OPTIMIZER + "test_every_argument",
        _OPTIMIZER + "test_optimizers_that_reject_parameters",
        _OPTIMIZER + "test_autocast",
        "ranks/test_optimizer.py::test_same_as_one_rank",
        "ranks/test_optimizer.py::test_sparse_gradients",
        "ranks/test_optimizer.py::test_process_set_trains_alone",
        "ranks/test_optimizer_wrapping.py::test_arguments_that_make_no_sense",
        "ranks/test_optimizer_steps.py::test_grad_scaler_without_synchronize",
    ),
    _torch(
        "DistributedOptimizer(op=Adasum)",
        "ranks/test_adasum_optimizer.py::test_combines_steps",
        "ranks/test_adasum_optimizer.py::test_compressed_steps",
        "ranks/test_adasum_optimizer.py::test_ways_and_limits",
    ),
    _torch(
        "DistributedOptimizer.synchronize", _OPTIMIZER + "test_synchronize_and_skip_synchronize"
    ),
    _torch(
        "DistributedOptimizer.skip_synchronize",
        _OPTIMIZER + "test_synchronize_and_skip_synchronize",
    ),
    _torch("DistributedOptimizer.step", _OPTIMIZER + "test_step_with_closure"),
    _torch("DistributedOptimizer.zero_grad", _OPTIMIZER + "test_zero_grad"),
    _torch(
        "DistributedOptimizer.set_backward_passes_per_step",
        _OPTIMIZER + "test_set_backward_passes_per_step",
    ),
    _torch("DistributedOptimizer.load_state_dict", _OPTIMIZER + "test_load_state_dict"),
    _torch("DistributedOptimizer.find_duplicates", _OPTIMIZER + "test_find_duplicates"),
    _torch(
        "SyncBatchNorm",
        "ranks/test_sync_batch_norm.py::test_same_as_the_whole_batch",
        "ranks/test_sync_batch_norm.py::test_refused",
    ),
    Row(
        "1.2 horovod.torch",
        "elastic.run",
        (
            _ELASTIC + "test_training_goes_back_to_its_last_commit",
            _ELASTIC + "test_hosts_updated_resets_and_goes_on",
            _ELASTIC + "test_a_mismatch_is_raised_and_not_tried_again",
            _ELASTIC + "test_other_exceptions_pass_through",
        ),
        everywhere=False,
    ),
    Row(
        "1.2 horovod.torch",
        "elastic.TorchState",
        (
            _STATES + "test_torch_state",
            _STATES + "test_a_model_that_takes_anothers_place",
        ),
        everywhere=False,
    ),
    Row(
        "1.2 horovod.torch",
        "elastic.ElasticSampler",
        (
            _SAMPLER + "test_sampler_parts_what_is_left",
            _SAMPLER + "test_sampler_in_a_state",
        ),
        everywhere=False,
    ),
    Row(
        "1.2 horovod.torch",
        "elastic.state handlers",
        (_STATES + "test_handlers_of_ones_own",),
        everywhere=False,
    ),
    _torch(
        "data types",
        "ranks/test_torch_collectives.py::test_every_type",
        "ranks/test_torch_collectives.py::test_refused_tensors",
    ),
    _torch("gradients", _GRADIENTS, "ranks/test_compile.py::test_full_graph_is_what_eager_is"),
]

ELASTIC = [
    Row("1.5 elastic", name, (test,), everywhere=False)
    for name, test in {
        "State": _STATES + "test_state_with_functions_of_ones_own",
        "ObjectState": _STATES + "test_object_state_commits_restores_and_syncs",
        "run_fn": _ELASTIC + "test_hosts_updated_resets_and_goes_on",
        "HostUpdateResult": _ELASTIC + "test_news_of_hosts_interrupt_every_rank",
    }.items()
]

ERRORS = [
    Row("1.7 errors", "mismatch is HorovodInternalError", (
        _JOB + "test_errors_have_horovods_types", "ranks/test_errors.py::test_disagreement",
    )),
    Row("1.7 errors", "name in flight is ValueError", (_REDUCTIONS + "test_allreduce_async",)),
    Row("1.7 errors", "rank outside of the process set is ValueError",
        (_REDUCTIONS + "test_allreduce",)),
    Row("1.7 errors", "unknown set is ValueError", (_JOB + "test_add_and_remove_process_sets",)),
    Row("1.7 errors", "bad splits are ValueError", (_EXCHANGES + "test_alltoall",)),
    Row("1.7 errors", "bad root is ValueError", (_EXCHANGES + "test_broadcast",)),
    Row("1.7 errors", "reducescatter of max is RuntimeError",
        (_REDUCTIONS + "test_reducescatter",)),
    Row("1.7 errors", "shut down is ValueError until init",
        (_JOB + "test_init_shutdown_and_init_again",)),
    Row("1.7 errors", "a rank that is gone is HorovodInternalError",
        ("launcher/test_engine_end.py::test_a_rank_ends_in_the_middle",), everywhere=False),
    Row("1.7 errors", "Adasum on a process set and on any number of ranks, no error here", (
        "ranks/test_adasum.py::test_formula", "ranks/test_adasum.py::test_process_set",
    )),
]  # fmt: skip

ROWS = [*BASICS, *TORCH, *ELASTIC, *ERRORS]

HEEDED = (  # noqa: SIM905
    "HOROVOD_FUSION_THRESHOLD HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES "
    "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS "
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_LOG_LEVEL HOROVOD_LOG_HIDE_TIME "
    "HOROVOD_START_TIMEOUT HOROVOD_THREAD_AFFINITY"
).split()
"""Horovod's variables that are settings here (section 2.1); values: launcher/test_launch_settings.
"""
TOLD = (  # noqa: SIM905
    "HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY HOROVOD_HIERARCHICAL_ALLREDUCE "
    "HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_TORUS_ALLREDUCE HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG "
    "HOROVOD_GLOO_TIMEOUT_SECONDS HOROVOD_NUM_NCCL_STREAMS HOROVOD_MPI_THREADS_DISABLE"
).split()
"""Horovod's variables that have no meaning here, and get a line that says why."""
FLAGS = (  # noqa: SIM905
    "--version -np --num-proc --check-build --disable-cache --network-interfaces "
    "--network-interface --output-filename --verbose --config-file --ssh-port --ssh-identity-file "
    "--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --reset-limit "
    "--blacklist-cooldown-range --mpi-args --tcp --binding-args --prefix-output-with-timestamp "
    "--hosts --hostfile --host-discovery-script --gloo --mpi --jsrun --fusion-threshold-mb "
    "--cycle-time-ms --cache-capacity --hierarchical-allreduce --hierarchical-allgather "
    "--torus-allreduce --autotune --autotune-log-file --autotune-warmup-samples "
    "--autotune-steps-per-sample --autotune-bayes-opt-max-samples "
    "--autotune-gaussian-process-noise --timeline-filename --timeline-mark-cycles "
    "--no-timeline-mark-cycles --stall-check --no-stall-check "
    "--stall-check-warning-time-seconds --stall-check-shutdown-time-seconds --log-level "
    "--log-with-timestamp --log-without-timestamp --log-hide-timestamp --start-timeout "
    "--gloo-timeout-seconds --num-nccl-streams --mpi-threads-disable"
).split()
"""Flags of horovodrun (sections 2.1 and 2.2)."""
