"""The table from Horovod's names to the objects of HoroACC that they mean."""

from __future__ import annotations

VERSION = "0.28.1"
"""Of the Horovod whose names these are; scripts compare `horovod.__version__` with a version."""

MODULES: dict[str, str] = {
    "horovod.common.elastic": "horoacc.elastic",
    "horovod.common.exceptions": "horoacc.errors",
    "horovod.common.process_sets": "horoacc.process_sets",
    "horovod.keras": "horoacc.keras",
    "horovod.keras.callbacks": "horoacc.keras.callbacks",
    "horovod.keras.elastic": "horoacc.keras.elastic",
    "horovod.ray": "horoacc.ray",
    "horovod.ray.ray_logger": "horoacc.ray.ray_logger",
    "horovod.ray.worker": "horoacc.ray.worker",
    "horovod.runner.common.util.env": "horoacc.dropin.variables",
    "horovod.runner.common.util.hosts": "horoacc.dropin.hosts",
    "horovod.runner.common.util.secret": "horoacc.dropin.secret",
    "horovod.runner.common.util.timeout": "horoacc.dropin.timeout",
    "horovod.runner.util.threads": "horoacc.dropin.threads",
    "horovod.spark": "horoacc.spark",
    "horovod.spark.common.backend": "horoacc.spark.backend",
    "horovod.spark.common.estimator": "horoacc.spark.estimator",
    "horovod.spark.common.params": "horoacc.spark.params",
    "horovod.spark.common.store": "horoacc.spark.store",
    "horovod.spark.keras": "horoacc.spark.keras",
    "horovod.spark.keras.estimator": "horoacc.spark.keras.estimator",
    "horovod.spark.runner": "horoacc.spark.runner",
    "horovod.spark.torch": "horoacc.spark.torch",
    "horovod.spark.torch.estimator": "horoacc.spark.torch.estimator",
    "horovod.tensorflow": "horoacc.tensorflow",
    "horovod.tensorflow.compression": "horoacc.tensorflow.compression",
    "horovod.tensorflow.elastic": "horoacc.tensorflow.elastic",
    "horovod.tensorflow.functions": "horoacc.tensorflow.functions",
    "horovod.tensorflow.keras": "horoacc.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "horoacc.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "horoacc.tensorflow.keras.elastic",
    "horovod.tensorflow.sync_batch_norm": "horoacc.tensorflow.sync_batch_norm",
    "horovod.torch": "horoacc.torch",
    "horovod.torch.compression": "horoacc.torch.compression",
    "horovod.torch.elastic": "horoacc.torch.elastic",
    "horovod.torch.elastic.sampler": "horoacc.torch.elastic.sampler",
    "horovod.torch.elastic.state": "horoacc.torch.elastic.state",
    "horovod.torch.functions": "horoacc.torch.functions",
    "horovod.torch.optimizer": "horoacc.torch.optimizer",
    "horovod.torch.sync_batch_norm": "horoacc.torch.sync_batch_norm",
}
"""Modules of Horovod that are a module of HoroACC: the same object under two names."""

_BASICS = "horoacc.dropin.basics_object"
_AVERAGE = "horoacc.dropin.average"
_EXTENSIONS = "horoacc.dropin.extensions"
_BUILT = ("mpi", "gloo", "nccl", "ddl", "ccl")
_JOB = (
    "init", "shutdown", "is_initialized", "start_timeline", "stop_timeline", "size", "local_size",
    "cross_size", "rank", "local_rank", "cross_rank", "is_homogeneous", "mpi_threads_supported",
    "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built", "ddl_built",
    "ccl_built", "cuda_built", "rocm_built", "ProcessSet", "global_process_set",
    "add_process_set", "remove_process_set", "Average", "Sum", "Adasum", "Min", "Max", "Product",
)  # fmt: skip
_COLLECTIVES = (
    "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
    "sparse_allreduce_async", "allgather", "allgather_async", "grouped_allgather",
    "grouped_allgather_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "alltoall", "alltoall_async", "reducescatter", "reducescatter_async", "grouped_reducescatter",
    "grouped_reducescatter_async", "join", "barrier", "poll", "synchronize",
    "HorovodInternalError", "Compression",
)  # fmt: skip
_TENSORFLOW_OPS = (
    "allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter", "allgather",
    "grouped_allgather", "broadcast", "broadcast_", "alltoall", "join", "size_op", "rank_op",
    "local_size_op", "local_rank_op", "process_set_included_op", "_allreduce", "gpu_available",
    "check_num_rank_power_of_2", "handle_average_backwards_compatibility",
)  # fmt: skip
_TENSORFLOW_SMALL = (
    "_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs",
)  # fmt: skip

NAMES: dict[str, dict[str, str]] = {
    "horovod": {
        "__version__": "horoacc.dropin.names:VERSION",
        "run": "horoacc:run",
    },
    "horovod.common": {},
    "horovod.common.basics": {"HorovodBasics": f"{_BASICS}:HorovodBasics"},
    "horovod.common.util": {
        "env": "horoacc.dropin.variables:env",
        "get_average_backwards_compatibility_fun": (
            f"{_AVERAGE}:get_average_backwards_compatibility_fun"
        ),
        "_cache": "functools:cache",
        **{
            name: f"horoacc.dropin.versions:{name}"
            for name in ("is_version_greater_equal_than", "support_non_legacy_keras_optimizers")
        },
        **{f"{what}_built": f"{_EXTENSIONS}:{what}_built" for what in _BUILT},
        **{
            name: f"{_EXTENSIONS}:{name}"
            for name in (
                "extension_available", "get_ext_suffix", "gpu_available", "check_extension",
                "check_installed_version",
            )
        },
        **{
            name: f"horoacc.dropin.pieces:{name}"
            for name in ("num_rank_is_power_2", "split_list", "is_iterable")
        },
    },
    "horovod.ray.elastic": {
        name: f"horoacc.ray:{name}" for name in ("ElasticRayExecutor", "RayHostDiscovery")
    },
    "horovod.ray.elastic_v2": {"RayHostDiscovery": "horoacc.ray:RayHostDiscovery"},
    "horovod.ray.runner": {
        "BaseHorovodWorker": "horoacc.ray:BaseHorovodWorker",
        "MiniSettings": "horoacc.ray.executor_settings:MiniSettings",
        "RayExecutor": "horoacc.ray:RayExecutor",
    },
    "horovod.runner": {
        "run": "horoacc:run", "run_commandline": "horoacc.launcher.main:main",
    },
    "horovod.runner.common": {},
    "horovod.runner.common.util": {},
    "horovod.runner.elastic": {},
    "horovod.runner.elastic.discovery": {
        "FixedHosts": "horoacc.elastic:FixedHosts",
        "HostDiscovery": "horoacc.elastic:HostDiscovery",
        "HostDiscoveryScript": "horoacc.elastic:HostDiscoveryScript",
    },
    "horovod.runner.elastic.worker": {"HostUpdateResult": "horoacc.elastic:HostUpdateResult"},
    "horovod.runner.launch": {"run_commandline": "horoacc.launcher.main:main"},
    "horovod.runner.util": {},
    "horovod.spark.common": {},
    "horovod.tensorflow.gradient_aggregation": {
        "LocalGradientAggregationHelper":
            "horoacc.tensorflow.gradient_aggregation:LocalGradientAggregation",
    },
    "horovod.tensorflow.mpi_ops": {
        "_basics": f"{_BASICS}:BASICS",
        **{name: f"horoacc.tensorflow:{name}" for name in (*_JOB, *_TENSORFLOW_OPS)},
    },
    "horovod.tensorflow.util": {
        name: f"horoacc.tensorflow.horovod_names:{name}" for name in _TENSORFLOW_SMALL
    },
    "horovod.torch.mpi_ops": {
        "_basics": f"{_BASICS}:BASICS",
        "handle_average_backwards_compatibility": f"{_AVERAGE}:handle_average",
        **{name: f"horoacc.torch:{name}" for name in (*_JOB, *_COLLECTIVES)},
    },
}  # fmt: skip
"""Modules of Horovod that are made of parts of HoroACC: their names as `module:name`."""

SHOWN = frozenset(
    name for name in (*NAMES, *MODULES) if name.startswith(("horovod.common", "horovod.runner"))
)
"""Modules that are attributes of those above them without having been imported: Horovod's frontends
import them, and one of these is always there."""

_IMPORTED = {"horovod.tensorflow": ("horovod.tensorflow.sync_batch_norm",)}


def parts(module: str) -> list[str]:
    """Lists the modules below a frontend that are attributes of it once it is imported.

    Args:
        module: The frontend's full name.

    Returns:
        Their full names.
    """
    below = [name for name in NAMES if name.rpartition(".")[0] == module]
    return [*below, *_IMPORTED.get(module, ())]


_FRONTENDS = {
    "horovod._keras": "what horovod.keras and horovod.tensorflow.keras are made of",
    "horovod.mxnet": "MXNet",
    "horovod.data": "Horovod's data loaders",
}
_PARTS = {
    "horovod.spark.lightning":
        "a LightningModule trains in a function for horoacc.spark.run (docs/clients.md)",
    "horovod.runner.common.util.config_parser":
        "horoaccrun reads its --config-file itself; `python -m horoacc.settings` lists the keys",
    "horovod.runner.common.util.network":
        "launcher and ranks have a protocol of their own (docs/security.md)",
    "horovod.runner.common.util.settings":
        "a job's settings are the arguments of horoacc.run, or flags of horoaccrun",
    "horovod.runner.common.util.safe_shell_exec":
        "take subprocess; horoaccrun ends what its ranks leave behind",
    "horovod.torch.mpi_lib_v2":
        "no compiled module is behind horovod.torch.mpi_ops, which has the collectives",
}  # fmt: skip
"""Parts of Horovod whose purpose another part of HoroACC serves."""


def absent(name: str) -> str:
    """Says why a module of Horovod is not here.

    Args:
        name: The module's full name.

    Returns:
        The reason, or "" if it is not one that is known to be absent.
    """
    if name in _PARTS:
        return f"HoroACC has no {name}: {_PARTS[name]}"
    for frontend, what in _FRONTENDS.items():
        if name == frontend or name.startswith(frontend + "."):
            return f"HoroACC has no frontend for {what} yet, so there is no {name}"
    return ""
