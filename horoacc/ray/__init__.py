"""Horovod's executors for Ray: ranks as actors, or an elastic job with an agent on each node.

    from horoacc.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
    executor.start()
    results = executor.run(train)
    executor.shutdown()

docs/ray.md says how the ranks are placed and what happens when a node dies.
"""

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ImportError("horoacc.ray needs Ray, which is not installed: pip install ray") from None

from horoacc.ray import ray_logger
from horoacc.ray.elastic_executor import ElasticRayExecutor
from horoacc.ray.executor import RayExecutor
from horoacc.ray.host_discovery import RayHostDiscovery
from horoacc.ray.worker import BaseHorovodWorker

__all__ = [
    "BaseHorovodWorker",
    "ElasticRayExecutor",
    "RayExecutor",
    "RayHostDiscovery",
    "ray_logger",
]
