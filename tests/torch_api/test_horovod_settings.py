"""Horovod's variables and flags: every one has an effect here, or a line that says why not."""

from __future__ import annotations

from horoacc import settings
from horoacc.launcher.arguments import build_parser
from horoacc.launcher.shim import place_variables

HEEDED = (  # noqa: SIM905
    "HOROVOD_FUSION_THRESHOLD HOROVOD_TIMELINE HOROVOD_TIMELINE_MARK_CYCLES "
    "HOROVOD_STALL_CHECK_DISABLE HOROVOD_STALL_CHECK_TIME_SECONDS "
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS HOROVOD_LOG_LEVEL HOROVOD_LOG_HIDE_TIME "
    "HOROVOD_ELASTIC_TIMEOUT HOROVOD_START_TIMEOUT HOROVOD_THREAD_AFFINITY HOROVOD_CONTROLLER "
    "HOROVOD_GLOO_IFACE HOROVOD_AUTOTUNE HOROVOD_AUTOTUNE_LOG HOROVOD_AUTOTUNE_WARMUP_SAMPLES "
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
).split()
"""Horovod's variables that are settings here (section 2.1); values: launcher/test_launch_settings.
"""
TOLD = (  # noqa: SIM905
    "HOROVOD_CYCLE_TIME HOROVOD_CACHE_CAPACITY HOROVOD_HIERARCHICAL_ALLREDUCE "
    "HOROVOD_HIERARCHICAL_ALLGATHER HOROVOD_TORUS_ALLREDUCE "
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE HOROVOD_GLOO_TIMEOUT_SECONDS "
    "HOROVOD_NUM_NCCL_STREAMS HOROVOD_MPI_THREADS_DISABLE "
    "HOROVOD_CPU_OPERATIONS HOROVOD_BATCH_D2D_MEMCOPIES HOROVOD_DISABLE_GROUP_FUSION "
    "HOROVOD_DISABLE_NVTX_RANGES HOROVOD_ENABLE_ASYNC_COMPLETION HOROVOD_DYNAMIC_PROCESS_SETS "
    "HOROVOD_ENABLE_XLA_OPS HOROVOD_ADASUM_MPI_CHUNK_SIZE HOROVOD_CCL_CACHE HOROVOD_ELASTIC "
    "HOROVOD_SPARK_START_TIMEOUT HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX "
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


def test_variables_and_flags() -> None:
    heeded = {setting.horovod_env for setting in settings.TABLE} - {""}
    told = {retired.env for retired in (*settings.RETIRED, *settings.RETIRED_VARIABLES)} - {""}
    assert set(HEEDED) <= heeded
    assert set(TOLD) <= told
    assert set(SET) <= set(place_variables(0, 1, 0, 1))
    assert set(FLAGS) - set(build_parser()._option_string_actions) == set()
