"""`RayExecutor`, with Horovod's arguments and methods."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from horoacc.launcher.executor_calls import WithArguments
from horoacc.ray.executor_settings import MiniSettings, without_ssh
from horoacc.ray.fixed_job import FixedJob
from horoacc.ray.placement import Demand

if TYPE_CHECKING:
    from horoacc.ray.elastic_job import ElasticJob

# For a client's job, which may still be in a call that Ctrl-C has ended in the client.
_SHUTDOWN_SECONDS = 5.0

Callbacks = Sequence[Callable[[Any], Any]] | None


class RayExecutor:
    """Runs functions on the ranks of a job in a Ray cluster.

    With `min_workers` each call is an elastic job, whose ranks come and go; otherwise the workers
    are there from `start` to `shutdown`.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | None = None,
    ) -> MiniSettings:
        """Makes settings.

        Args:
            timeout_s: How long the ranks wait for each other in `init()`, in seconds.
            ssh_identity_file: Has no effect, and warns.
            ssh_str: The same.
            placement_group_timeout_s: How long to wait for resources, in seconds.
            nics: Network interfaces for data between hosts.

        Returns:
            The settings.
        """
        without_ssh(ssh_identity_file=ssh_identity_file, ssh_str=ssh_str)
        return MiniSettings(
            timeout_s=timeout_s, placement_group_timeout_s=placement_group_timeout_s, nics=nics
        )

    def __init__(
        self,
        settings: MiniSettings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: Of `create_settings`.
            num_workers: The number of workers, wherever there is room: PACK.
            num_hosts: The number of nodes, with as many workers each: STRICT_SPREAD.
            num_workers_per_host: Of each of these nodes.
            cpus_per_worker: Of each worker.
            use_gpu: Whether a worker has GPUs.
            gpus_per_worker: Their number; None: 1.
            use_current_placement_group: Whether to take the placement group of this process.
            min_workers: The fewest workers to go on with; makes each call an elastic job.
            max_workers: The most workers of an elastic job.
            reset_limit: How often the ranks of an elastic job may change.
            cooldown_range: The shortest and longest time, in seconds, for which an elastic job
                leaves a host out after a failure.
            elastic_timeout: How long an elastic job may lack ranks, in seconds.
            override_discovery: Whether to ask Ray for nodes, and not the settings' `discovery`.

        Raises:
            ValueError: Arguments contradict each other, or a number is not positive.
        """
        _check_numbers(
            num_workers=num_workers, num_hosts=num_hosts, num_workers_per_host=num_workers_per_host,
            gpus_per_worker=gpus_per_worker, min_workers=min_workers, max_workers=max_workers,
        )  # fmt: skip
        if cpus_per_worker < 0 or (min_workers and not cpus_per_worker):
            raise ValueError(f"cpus_per_worker is {cpus_per_worker}; a worker takes more")
        gpus = gpus_of(use_gpu, gpus_per_worker, "gpus_per_worker")
        if max_workers and not min_workers:
            raise ValueError("`max_workers` needs `min_workers`, which makes the job elastic.")
        if min_workers and (num_workers or num_hosts):
            other = "num_workers" if num_workers else "num_hosts"
            raise ValueError(
                f"Both `min_workers` and `{other}` provided. A job is elastic, or its size fixed."
            )
        # A copy: another executor may have the same settings.
        self.settings = settings = dataclasses.replace(settings, elastic=min_workers is not None)
        self._make: Callable[[], FixedJob | ElasticJob]
        if min_workers is not None:
            if max_workers is not None and max_workers < min_workers:
                raise ValueError(f"max_workers={max_workers} is below min_workers={min_workers}")
            # Workers import this module, and wait for what it imports.
            from horoacc.ray.elastic_job import ElasticJob  # noqa: PLC0415

            settings.reset_limit = reset_limit
            settings.cooldown_range = cooldown_range
            settings.elastic_timeout = elastic_timeout
            self._make = functools.partial(
                ElasticJob, settings, least=min_workers, most=max_workers, cpus=cpus_per_worker,
                gpus=gpus, override_discovery=override_discovery,
            )  # fmt: skip
        else:
            if (num_workers is None) == (num_hosts is None):
                raise ValueError("give either num_workers, or num_hosts, or min_workers")
            workers = num_workers or (num_hosts or 0) * (num_workers_per_host or 1)
            demand = Demand(workers, num_hosts, cpus_per_worker, gpus)
            self._make = functools.partial(FixedJob, settings, demand, use_current_placement_group)
        self._job: Any = None
        self._remote = False

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the workers, or makes ready for elastic jobs.

        Args:
            executable_cls: Made in each worker; the argument of the functions of `execute`.
            executable_args: For the class.
            executable_kwargs: For the class.
            extra_env_vars: Variables of the workers, besides this process's HOROACC_* and
                HOROVOD_*, which count less.

        Raises:
            TimeoutError: The cluster has had no room for too long.
            ValueError: The placement group of this process is too small.
        """
        self.shutdown()
        self._remote = ray.util.client.ray.is_connected()
        # Beside Ray's client, which is in no cluster, the job belongs to an actor.
        self._job = (
            ray.remote(_Remote).options(num_cpus=0).remote(self._make)
            if self._remote
            else self._make()
        )
        self._call("start", executable_cls, executable_args, executable_kwargs, extra_env_vars)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks = None,
    ) -> list[Any]:
        """Calls a function on every worker.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            callbacks: Each gets whatever a rank gives to `ray_logger.log`. A thread calls them.

        Returns:
            What the function returned, by rank; of an elastic job by the ranks at its end.

        Raises:
            RankFailed: An actor, a process or a node died; `culprit` is the rank.
            Exception: The exception of the first rank that failed.
        """
        return self.execute(WithArguments(fn, args, kwargs), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a function on every worker, and does not wait.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            References for `ray.get`, by rank.

        Raises:
            NotImplementedError: The job is elastic.
        """
        return list(self._call("call", WithArguments(fn, args, kwargs)))

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks = None) -> list[Any]:
        """Calls a function on every worker, with its executable.

        Args:
            fn: Gets the executable, or None.
            callbacks: As of `run`.

        Returns:
            As `run`.

        Raises:
            RankFailed: As `run`.
            Exception: As `run`.
        """
        return list(self._call("execute", fn, callbacks))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls a function on rank 0.

        Args:
            fn: Gets the executable, or None.

        Returns:
            What the function returned.

        Raises:
            NotImplementedError: The job is elastic.
        """
        return self._call("execute_single", fn)

    def shutdown(self) -> None:
        """Ends the workers and gives their resources back. A second call does nothing."""
        if self._job is None:
            return
        job, self._job = self._job, None
        if not self._remote:
            job.shutdown()
            return
        try:
            with contextlib.suppress(GetTimeoutError, RayActorError):
                ray.get(job.call.remote("shutdown"), timeout=_SHUTDOWN_SECONDS)
        finally:
            ray.kill(job)  # and with it the actors and the placement group that it owns

    def _call(self, method: str, *args: Any) -> Any:
        if self._job is None:
            raise RuntimeError("the executor was not started: call start() first")
        if self._remote:
            return ray.get(self._job.call.remote(method, *args))
        return getattr(self._job, method)(*args)


class _Remote:
    """The actor that has the job of a client."""

    def __init__(self, make: Callable[[], FixedJob | ElasticJob]) -> None:
        self._job = make()

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._job, method)(*args)


def _check_numbers(**given: int | None) -> None:
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def gpus_of(use_gpu: bool, count: int | None, name: str) -> int:
    """The GPUs of a worker. ValueError: a number without `use_gpu`."""
    if count and not use_gpu:
        raise ValueError(f"{name} is set, but use_gpu is False")
    return (count or 1) if use_gpu else 0
