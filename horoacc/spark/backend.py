"""Where an estimator's training function runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horoacc.spark.runner import active_context, run


class Backend:
    """Runs a function on ranks."""

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls a function on every rank, and gives its results by rank.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            env: More variables of the ranks.
        """
        raise NotImplementedError

    def num_processes(self) -> int:
        """Gives the number of ranks."""
        raise NotImplementedError


class SparkBackend(Backend):
    """Runs it on Spark's executors."""

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        """Runs nothing yet.

        Args:
            num_proc: The number of ranks; None: `spark.default.parallelism`.
            env: More variables of the ranks.
            kwargs: Other arguments of `horoacc.spark.run`.
        """
        self._num_proc = num_proc
        self._env = dict(env or {})
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls a function on every rank, and gives its results by rank.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            env: More variables of the ranks.
        """
        given = {**(env or {}), **self._env}
        return run(fn, args, kwargs, self.num_processes(), env=given, **self._kwargs)

    def num_processes(self) -> int:
        """Gives the number of ranks."""
        if self._num_proc is not None:
            return self._num_proc
        return int(active_context().defaultParallelism)
