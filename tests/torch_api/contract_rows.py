"""Horovod's API for PyTorch, row by row, with the tests of each row.

A test is named by its file in `tests/` and its function. A row says which tests compare values with
an oracle, which pass an argument that is not the default, and which see an error; all three run on
each number of ranks of the row. `test_contract_rows.py` checks that from the tests' own text.
Signatures are those of `torch_api/test_signatures.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = frozenset({1, 2, 3, 4})
SEVERAL = ALL - {1}
"""Where the error is one of ranks that have others."""


@dataclass(frozen=True)
class Row:
    """One row of Horovod's tables."""

    table: str
    name: str
    tests: tuple[str, ...]
    """Those that compare values."""
    errors: tuple[str, ...] | str = ()
    """Those that see errors, if not the same; or why it cannot fail."""
    arguments: tuple[str, ...] = ()
    """Those that pass an argument that is not the default, if not the same."""
    sizes: frozenset[int] = ALL
    error_sizes: frozenset[int] = ALL


_REDUCTIONS = "ranks/test_contract_reductions.py::"
_EXCHANGES = "ranks/test_contract_exchanges.py::"
_OPTIMIZER = "ranks/test_contract_optimizer.py::"
_JOB = "ranks/test_contract_job.py::"
_GRADIENTS = "ranks/test_gradients.py::"
_NAMES = "torch_api/test_horovod_names.py::"
_ELASTIC = "ranks/test_elastic.py::"
_STATES = "ranks/test_elastic_states.py::"
_SAMPLER = "ranks/test_elastic_sampler.py::"
_JOIN = "ranks/test_join.py::"
_END = "launcher/test_engine_end.py::"


def _job(*names: str, test: str, errors: tuple[str, ...] | str = ()) -> list[Row]:
    return [Row("1.1 basics", name, (_JOB + test,), errors) for name in names]


BASICS = [
    Row("1.1 basics", "init", (
        _JOB + "test_init_shutdown_and_init_again",
        "launcher/test_engine_start.py::test_every_form_of_init",
        "launcher/test_engine_start.py::test_some_of_the_ranks_need_mpi",
    )),
    *_job("shutdown", "is_initialized", test="test_init_shutdown_and_init_again"),
    *_job("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous",
          test="test_places", errors=(_JOB + "test_init_shutdown_and_init_again",)),
    *_job("mpi_threads_supported", test="test_questions_about_the_build"),
    *_job("mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
          "ddl_built", "ccl_built", "cuda_built", "rocm_built", "nccl_built",
          test="test_questions_about_the_build", errors="it answers without a job as well"),
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
        _JOB + "test_internals_that_tools_import", _NAMES + "test_name_is_the_same_object",
        _NAMES + "test_basics_object", _NAMES + "test_small_functions", _NAMES + "test_threads",
    )),
]  # fmt: skip


def _torch(name: str, *tests: str, error_sizes: frozenset[int] = ALL) -> Row:
    return Row("1.2 horovod.torch", name, tests, error_sizes=error_sizes)


TORCH = [
    _torch("allreduce", _REDUCTIONS + "test_allreduce", _GRADIENTS + "test_allreduce"),
    _torch("allreduce_async", _REDUCTIONS + "test_allreduce_async"),
    _torch("allreduce_", _REDUCTIONS + "test_allreduce_in_place"),
    _torch("allreduce_async_", _REDUCTIONS + "test_allreduce_async_in_place"),
    _torch(
        "grouped_allreduce", _REDUCTIONS + "test_grouped_allreduce", _GRADIENTS + "test_allreduce"
    ),
    _torch("grouped_allreduce_async", _REDUCTIONS + "test_grouped_allreduce_async"),
    _torch("grouped_allreduce_", _REDUCTIONS + "test_grouped_allreduce_in_place"),
    _torch("grouped_allreduce_async_", _REDUCTIONS + "test_grouped_allreduce_async_in_place"),
    _torch("sparse_allreduce_async", _REDUCTIONS + "test_sparse_allreduce_async"),
    _torch("allgather", _EXCHANGES + "test_allgather", _GRADIENTS + "test_allgather"),
    _torch("allgather_async", _EXCHANGES + "test_allgather_async"),
    _torch(
        "grouped_allgather", _EXCHANGES + "test_grouped_allgather", _GRADIENTS + "test_allgather"
    ),
    _torch("grouped_allgather_async", _EXCHANGES + "test_grouped_allgather_async"),
    _torch("broadcast", _EXCHANGES + "test_broadcast", _GRADIENTS + "test_broadcast"),
    _torch("broadcast_async", _EXCHANGES + "test_broadcast_async"),
    _torch("broadcast_", _EXCHANGES + "test_broadcast_in_place"),
    _torch("broadcast_async_", _EXCHANGES + "test_broadcast_async_in_place"),
    _torch("alltoall", _EXCHANGES + "test_alltoall", _GRADIENTS + "test_alltoall"),
    _torch("alltoall_async", _EXCHANGES + "test_alltoall_async"),
    _torch("reducescatter", _REDUCTIONS + "test_reducescatter", _GRADIENTS + "test_reducescatter"),
    _torch("reducescatter_async", _REDUCTIONS + "test_reducescatter_async"),
    _torch(
        "grouped_reducescatter",
        _REDUCTIONS + "test_grouped_reducescatter",
        _GRADIENTS + "test_reducescatter",
    ),
    _torch("grouped_reducescatter_async", _REDUCTIONS + "test_grouped_reducescatter_async"),
    _torch(
        "join",
        _JOIN + "test_uneven_steps",
        _JOIN + "test_other_collectives_name_the_joined_ranks",
        _JOIN + "test_alone",
        _JOIN + "test_a_device_is_a_number",
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
        error_sizes=SEVERAL,
    ),
    _torch(
        "DistributedOptimizer.synchronize",
        _OPTIMIZER + "test_synchronize_and_skip_synchronize",
        error_sizes=SEVERAL,
    ),
    _torch(
        "DistributedOptimizer.skip_synchronize",
        _OPTIMIZER + "test_synchronize_and_skip_synchronize",
        error_sizes=SEVERAL,
    ),
    _torch("DistributedOptimizer.step", _OPTIMIZER + "test_step_with_closure"),
    _torch("DistributedOptimizer.zero_grad", _OPTIMIZER + "test_zero_grad", error_sizes=SEVERAL),
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
    _torch(
        "elastic.run",
        _ELASTIC + "test_training_goes_back_to_its_last_commit",
        _ELASTIC + "test_hosts_updated_resets_and_goes_on",
        _ELASTIC + "test_a_mismatch_is_raised_and_not_tried_again",
        _ELASTIC + "test_other_exceptions_pass_through",
    ),
    _torch(
        "elastic.TorchState",
        _STATES + "test_torch_state",
        _STATES + "test_a_model_that_takes_anothers_place",
    ),
    _torch(
        "elastic.ElasticSampler",
        _SAMPLER + "test_sampler_parts_what_is_left",
        _SAMPLER + "test_sampler_in_a_state",
    ),
    _torch("elastic.state handlers", _STATES + "test_handlers_of_ones_own"),
    _torch(
        "data types",
        "ranks/test_torch_collectives.py::test_every_type",
        "ranks/test_torch_collectives.py::test_refused_tensors",
    ),
    _torch(
        "gradients",
        *(
            _GRADIENTS + f"test_{name}"
            for name in (
                "allreduce",
                "compressed_allreduce",
                "allgather",
                "broadcast",
                "alltoall",
                "reducescatter",
                "process_sets",
                "errors",
            )
        ),
        "ranks/test_compile.py::test_full_graph_is_what_eager_is",
    ),
]

ELASTIC = [
    Row("1.5 elastic", "State", (_STATES + "test_state_with_functions_of_ones_own",)),
    Row("1.5 elastic", "ObjectState", (
        _STATES + "test_object_state_commits_restores_and_syncs",
        _STATES + "test_state_with_functions_of_ones_own",
    )),
    Row("1.5 elastic", "run_fn", (_ELASTIC + "test_hosts_updated_resets_and_goes_on",),
        (_ELASTIC + "test_an_error_that_comes_again_and_again_ends_it",)),
    Row("1.5 elastic", "HostUpdateResult", (_ELASTIC + "test_news_of_hosts_interrupt_every_rank",)),
]  # fmt: skip

ERRORS = [
    Row("1.7 errors", "mismatch is HorovodInternalError", (
        _JOB + "test_errors_have_horovods_types", "ranks/test_errors.py::test_disagreement",
    ), error_sizes=SEVERAL),
    Row("1.7 errors", "name in flight is ValueError", (_REDUCTIONS + "test_allreduce_async",)),
    Row("1.7 errors", "rank outside of the process set is ValueError",
        (_REDUCTIONS + "test_allreduce",), error_sizes=SEVERAL),
    Row("1.7 errors", "unknown set is ValueError", (_JOB + "test_add_and_remove_process_sets",)),
    Row("1.7 errors", "bad splits are ValueError", (_EXCHANGES + "test_alltoall",)),
    Row("1.7 errors", "bad root is ValueError", (_EXCHANGES + "test_broadcast",)),
    Row("1.7 errors", "reducescatter of max is RuntimeError",
        (_REDUCTIONS + "test_reducescatter",)),
    Row("1.7 errors", "shut down is HorovodInternalError from collectives, ValueError from rank()",
        (_JOB + "test_init_shutdown_and_init_again",)),
    Row("1.7 errors", "a rank that is gone is HorovodInternalError",
        (_END + "test_a_rank_dies", _END + "test_a_rank_ends_in_the_middle"),
        "the error is what is compared, in the ranks' output", sizes=SEVERAL),
    Row("1.7 errors", "Adasum on a process set and on any number of ranks", (
        "ranks/test_adasum.py::test_formula", "ranks/test_adasum.py::test_process_set",
    ), "it is no error here"),
]  # fmt: skip

BEHAVIOURS = [
    Row("4 behaviours", "poll does not claim what could not have run",
        (_EXCHANGES + "test_poll_and_synchronize",)),
    Row("4 behaviours", "a name is held until its handle is released",
        (_REDUCTIONS + "test_allreduce_async",)),
    Row("4 behaviours", "sums and averages of few ranks are exact, integers are truncated",
        ("ranks/test_torch_collectives.py::test_every_type",)),
    Row("4 behaviours", "join gives the same last rank, cold and warm; Average divides by all",
        (_JOIN + "test_uneven_steps",), (_JOIN + "test_a_device_is_a_number",)),
    Row("4 behaviours", "a barrier of one set does not hold back another", (
        _EXCHANGES + "test_a_barrier_holds_back_its_own_set_only",
    ), (_EXCHANGES + "test_barrier",)),
    Row("4 behaviours", "step after synchronize warns once; duplicate names are ValueError", (
        _OPTIMIZER + "test_synchronize_and_skip_synchronize", _OPTIMIZER + "test_every_argument",
    )),
    Row("4 behaviours", "a job of one rank without a launcher; init after shutdown", (
        _JOB + "test_init_shutdown_and_init_again",
        "launcher/test_engine_start.py::test_every_form_of_init",
    )),
    Row("4 behaviours", "mpi_built, ccl_built, ddl_built", (
        _JOB + "test_questions_about_the_build",
        "launcher/test_engine_start.py::test_every_form_of_init",
    )),
]  # fmt: skip

ROWS = [*BASICS, *TORCH, *ELASTIC, *ERRORS, *BEHAVIOURS]

HEEDED = (  # noqa: SIM905
    "HOROVOD_FUSION_THRESHOLD HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES "
    "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS "
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_LOG_LEVEL HOROVOD_LOG_HIDE_TIME "
    "HOROVOD_START_TIMEOUT HOROVOD_THREAD_AFFINITY HOROVOD_CONTROLLER HOROVOD_GLOO_IFACE"
).split()
"""Horovod's variables that are settings here (section 2.1); values: launcher/test_launch_settings.
"""
TOLD = (  # noqa: SIM905
    "HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY HOROVOD_HIERARCHICAL_ALLREDUCE "
    "HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_TORUS_ALLREDUCE HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG "
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE "
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE "
    "HOROVOD_GLOO_TIMEOUT_SECONDS HOROVOD_NUM_NCCL_STREAMS HOROVOD_MPI_THREADS_DISABLE "
    "HOROVOD_CPU_OPERATIONS HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_DISABLE_GROUP_FUSION "
    "HOROVOD_DISABLE_NVTX_RANGES HOROVOD_ENABLE_ASYNC_COMPLETION HOROVOD_DYNAMIC_PROCESS_SETS "
    "HOROVOD_ENABLE_XLA_OPS HOROVOD_ADASUM_MPI_CHUNK_SIZE HOROVOD_CCL_CACHE HOROVOD_ELASTIC "
    "HOROVOD_ELASTIC_TIMEOUT HOROVOD_SPARK_START_TIMEOUT HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX "
    "HOROVOD_SPARK_PYTHONPATH HOROVOD_SPARK_WORK_DIR HOROVOD_GLOO_RENDEZVOUS_ADDR "
    "HOROVOD_GLOO_RENDEZVOUS_PORT HOROVOD_SECRET_KEY"
).split()
"""Horovod's variables that have no meaning here, and get a line that says why."""
SET = (  # noqa: SIM905
    "HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_RANK HOROVOD_LOCAL_SIZE HOROVOD_CROSS_RANK "
    "HOROVOD_CROSS_SIZE HOROVOD_HOSTNAME"
).split()
"""What the launcher tells ranks that no MPI starts; values: launcher/test_launch_start."""
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
