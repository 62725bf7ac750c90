"""An elastic job of an executor: the coordinator in a process beside this one, agents on nodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import ray

from horoacc.elastic.discovery import HostDiscovery
from horoacc.launcher.cluster_function import ClusterFunction
from horoacc.launcher.elastic.membership import INFINITE
from horoacc.launcher.executor_calls import WithExecutable
from horoacc.launcher.function import flags
from horoacc.ray import ray_logger
from horoacc.ray.executor_settings import MiniSettings
from horoacc.ray.host_agents import RayAgents
from horoacc.ray.host_discovery import NodeHosts, RayHostDiscovery

# For agents, after the job's end.
_END_SECONDS = 15.0
_NO_REFERENCES = "an elastic job has no {}, since its workers come and go: take {}"


class ElasticJob:
    """The jobs of one executor, one for each call."""

    def __init__(
        self,
        settings: MiniSettings,
        *,
        least: int,
        most: int | None,
        cpus: float,
        gpus: float,
        override_discovery: bool,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: The executor's.
            least: The fewest workers to go on with.
            most: The most workers.
            cpus: Of each worker.
            gpus: Of each worker.
            override_discovery: Whether to ask Ray for nodes, whatever the settings say.
        """
        self._settings = settings
        self._least = least
        self._most = most
        self._cpus = cpus
        self._gpus = gpus
        given = None if override_discovery else settings.discovery
        self._discovery: HostDiscovery = given or RayHostDiscovery(bool(gpus), cpus, gpus)
        self._executable: tuple[Any, ...] | None = None
        self._env: dict[str, str] = {}

    def start(
        self,
        executable_cls: type | None,
        executable_args: Sequence[Any] | None,
        executable_kwargs: Mapping[str, Any] | None,
        extra_env_vars: Mapping[str, str] | None,
    ) -> None:
        """Looks for hosts; workers start with each call."""
        ray.nodes()  # or Ray says that it is not there
        self._executable = executable_cls, executable_args, executable_kwargs
        self._env = {name: str(value) for name, value in (extra_env_vars or {}).items()}

    def execute(
        self, func: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None
    ) -> list[Any]:
        """Runs a job whose workers call a function.

        Args:
            func: Gets the executable, or None.
            callbacks: Get what ranks log.

        Returns:
            The results by rank at the job's end.
        """
        if self._executable is None:
            raise RuntimeError("the executor was not started: call start() first")
        settings = self._settings
        line = flags(
            {
                "--num-proc": self._least,
                "--min-num-proc": self._least,
                "--max-num-proc": self._most,
                "--reset-limit": settings.reset_limit,
                "--blacklist-cooldown-range": settings.cooldown_range,
                "--elastic-timeout": settings.elastic_timeout,
                "--verbose": settings.verbose >= 2,
            }
        )
        call = cloudpickle.dumps((WithExecutable(func, *self._executable), (), {}))
        env = {**settings.variables(), **self._env}
        lock = threading.Lock()
        failures: list[BaseException] = []

        def take(name: str, body: bytes) -> None:
            if job.keep(name, body) or name != ray_logger.EVENT:
                return
            try:
                with lock:
                    told = cloudpickle.loads(body)
                    for callback in callbacks or ():
                        callback(told)
            except Exception as error:
                failures.append(error)

        with ClusterFunction(line, settings.variables()) as job:
            hosts = NodeHosts(self._discovery)
            agents = RayAgents(hosts, call, self._resources, self._with_threads(env), take)
            agents.prepare(self._chosen(hosts.look()))
            try:
                code = job.run(agents)
                agents.close(_END_SECONDS)
            finally:
                agents.close(0.0)
            results = job.results(code)
        if failures:
            raise failures[0]
        return results

    def call(self, func: Callable[[Any], Any]) -> list[Any]:
        """Raises NotImplementedError: references outlive no worker."""
        raise NotImplementedError(_NO_REFERENCES.format("run_remote()", "run()"))

    def execute_single(self, func: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError: no worker is there without a job."""
        raise NotImplementedError(_NO_REFERENCES.format("execute_single()", "execute()"))

    def shutdown(self) -> None:
        """Forgets the executable; nothing runs between calls."""
        self._executable = None

    def _resources(self, slots: int) -> dict[str, float]:
        count = slots if self._most is None else min(slots, self._most)
        return {"num_cpus": self._cpus * count, "num_gpus": self._gpus * count}

    def _with_threads(self, env: Mapping[str, str]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(max(1, int(self._cpus))), **env}

    def _chosen(self, found: Mapping[str, int]) -> list[str]:
        """The hosts that the job begins with; says at once if it will wait for more."""
        if sum(found.values()) < self._least:
            listed = ", ".join(f"{host}:{slots}" for host, slots in found.items()) or "none"
            each = f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")
            print(
                f"horoacc.ray: {self._least} workers of {each} do not fit on the hosts now "
                f"({listed}): waiting {self._settings.elastic_timeout:g} s (elastic_timeout)",
                file=sys.stderr,
                flush=True,
            )
        chosen, room = [], INFINITE if self._most is None else self._most
        for host, slots in found.items():
            if room > 0:
                chosen.append(host)
            room -= slots
        return chosen
