"""`ElasticRayExecutor`, Horovod's older class for elastic jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from horoacc.ray.executor import RayExecutor, gpus_of
from horoacc.ray.executor_settings import MiniSettings, without_ssh


class ElasticRayExecutor:
    """Runs elastic jobs in a Ray cluster, as a `RayExecutor` with `min_workers` does."""

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Iterable[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> MiniSettings:
        """Makes settings.

        Args:
            min_num_proc: The fewest workers to go on with.
            max_num_proc: The most workers.
            reset_limit: How often the ranks may change.
            elastic_timeout: How long the job may lack ranks, in seconds.
            timeout_s: How long the ranks wait for each other in `init()`, in seconds.
            ssh_identity_file: Has no effect, and warns.
            nics: Network interfaces for data between hosts.
            min_np: The older name of `min_num_proc`.
            max_np: The older name of `max_num_proc`.
            **kwargs: Other fields of the settings: `verbose`, `discovery`, `cooldown_range`.

        Returns:
            The settings.
        """
        without_ssh(ssh_identity_file=ssh_identity_file)
        return MiniSettings(
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit, elastic_timeout=elastic_timeout, timeout_s=timeout_s,
            nics=nics, elastic=True, **kwargs,
        )  # fmt: skip

    def __init__(
        self,
        settings: MiniSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        """Starts nothing yet.

        Args:
            settings: Of `create_settings`.
            use_gpu: Whether a worker has GPUs.
            cpus_per_slot: The CPUs of a worker.
            gpus_per_slot: The GPUs of a worker; None: 1.
            env_vars: Variables of the workers.
            override_discovery: Whether to ask Ray for nodes, and not the settings' `discovery`.

        Raises:
            ValueError: Arguments contradict each other, or a number is not positive.
        """
        gpus_of(use_gpu, gpus_per_slot, "gpus_per_slot")
        self.settings = settings
        self._env = dict(env_vars or {})
        self._executor = RayExecutor(
            settings, cpus_per_worker=cpus_per_slot, use_gpu=use_gpu, gpus_per_worker=gpus_per_slot,
            min_workers=settings.min_num_proc, max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit, cooldown_range=_pair(settings.cooldown_range),
            elastic_timeout=settings.elastic_timeout, override_discovery=override_discovery,
        )  # fmt: skip

    def start(self) -> None:
        """Makes ready for jobs."""
        self._executor.start(extra_env_vars=self._env)

    def run(
        self,
        worker_fn: Callable[[], Any],
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Runs a job whose workers call a function.

        Args:
            worker_fn: The function.
            callbacks: Each gets whatever a rank gives to `ray_logger.log`.

        Returns:
            What the function returned, by the ranks at the job's end.

        Raises:
            RankFailed: A process or a node died, and the job could not go on.
            Exception: The exception of the rank because of which the job ended.
        """
        return self._executor.run(worker_fn, callbacks=callbacks)


def _pair(given: Iterable[int] | None) -> list[int] | None:
    return None if given is None else list(given)
