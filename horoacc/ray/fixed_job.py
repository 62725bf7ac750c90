"""A job of a fixed number of actors, each of which is a rank."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.queue import Empty, Queue

from horoacc import dropin, settings
from horoacc.errors import PeerLost, RankFailed
from horoacc.launcher.places import host_places, meeting_variables
from horoacc.ray.executor_settings import MiniSettings
from horoacc.ray.placement import Demand, Placement
from horoacc.ray.ray_errors import one_line
from horoacc.ray.worker import BaseHorovodWorker, Seat

# Ray may take long to see that a node is gone whose ranks the others miss already.
_CULPRIT_SECONDS = 1.0
# Between a rank's exception and the end of the ranks that need nothing of it any more.
_TOGETHER_SECONDS = 0.3
_LOOK_SECONDS = 0.1


class FixedJob:
    """The workers of one executor."""

    def __init__(self, settings: MiniSettings, demand: Demand, inherit: bool) -> None:
        """Starts nothing yet.

        Args:
            settings: The executor's.
            demand: Its workers.
            inherit: Whether to take this process's placement group, if there is one.
        """
        self._settings = settings
        self._demand = demand
        self._inherit = inherit
        self._placement: Placement | None = None
        self._workers: list[Any] = []
        self._seats: list[Seat] = []

    def start(
        self,
        executable_cls: type | None,
        executable_args: Sequence[Any] | None,
        executable_kwargs: Mapping[str, Any] | None,
        extra_env_vars: Mapping[str, str] | None,
    ) -> None:
        """Starts the workers, as `RayExecutor.start`."""
        self.shutdown()
        seconds = self._settings.placement_group_timeout_s
        self._placement = Placement(self._demand, self._inherit, seconds)
        try:
            self._start_workers(seconds, dict(extra_env_vars or {}))
            self.results(
                [
                    worker.start_executable.remote(
                        executable_cls, executable_args, executable_kwargs
                    )
                    for worker in self._workers
                ]
            )
        except BaseException:
            self.shutdown()
            raise

    def _start_workers(self, seconds: float, env: Mapping[str, str]) -> None:
        assert self._placement is not None
        actor, demand = ray.remote(BaseHorovodWorker), self._demand
        workers = [
            actor.options(
                num_cpus=demand.cpus,
                num_gpus=demand.gpus,
                scheduling_strategy=self._placement.strategy(number),
            ).remote(number, demand.workers)
            for number in range(demand.workers)
        ]
        self._workers = workers
        asked = [worker.meet.remote() for worker in workers]
        try:
            seats: list[Seat] = ray.get(asked, timeout=seconds)
        except GetTimeoutError:
            done, _ = ray.wait(asked, num_returns=len(asked), timeout=0)
            raise TimeoutError(
                f"{len(asked) - len(done)} of {len(asked)} workers have not started in "
                f"{seconds:g} s (placement_group_timeout_s)"
            ) from None
        # Ranks of a node follow each other, as from any launcher.
        nodes = [seat.node for seat in seats]
        order = sorted(range(len(seats)), key=lambda number: nodes.index(seats[number].node))
        self._workers = [workers[number] for number in order]
        self._seats = [seats[number] for number in order]
        # Workers import this module, and wait for what it imports.
        from horoacc.launcher.main import POSITION_VARIABLES  # noqa: PLC0415

        ours = {
            name: text
            for name, text in os.environ.items()
            if name.startswith(("HOROACC_", "HOROVOD_")) and name not in POSITION_VARIABLES
        }
        variables = _variables(self._seats, {**ours, **self._settings.variables(), **env})
        self.results(
            [
                worker.take_place.remote(own, dropin.installed())
                for worker, own in zip(self._workers, variables, strict=True)
            ]
        )

    def call(self, func: Callable[[Any], Any]) -> list[Any]:
        """Has all workers call a function; gives references of Ray's, by rank."""
        return [worker.execute.remote(func) for worker in self._living()]

    def execute(
        self, func: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None
    ) -> list[Any]:
        """Has all workers call a function; gives its results by rank, or raises the first error."""
        if not callbacks:
            return self.results(self.call(func))
        with _heard(callbacks) as queue:
            try:
                self.results([worker.set_queue.remote(queue) for worker in self._living()])
                return self.results(self.call(func))
            finally:
                for worker in self._workers:
                    worker.set_queue.remote(None)

    def execute_single(self, func: Callable[[Any], Any]) -> Any:
        """Has rank 0 call a function."""
        return self.results([self._living()[0].execute.remote(func)])[0]

    def _living(self) -> list[Any]:
        if not self._workers:
            raise RuntimeError("the executor has no workers: call start() first")
        return self._workers

    def results(self, refs: Sequence[Any]) -> list[Any]:
        """The values of references, by rank.

        A rank that has raised an exception while others go on leaves the job: they may wait for it.

        Raises:
            RankFailed: An actor or its node is gone; `culprit` is the rank.
            Exception: The exception of the first rank that failed.
        """
        ranks = {ref: rank for rank, ref in enumerate(refs)}
        values: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        leave_at = until = float("inf")
        while ranks and (now := time.monotonic()) < until:
            wait = None if not errors else max(0.0, min(leave_at, until) - now)
            done, _ = ray.wait(list(ranks), timeout=wait)
            for ref in done:
                rank = ranks.pop(ref)
                try:
                    values[rank] = ray.get(ref)
                except Exception as error:
                    errors[rank] = error
            now = time.monotonic()
            if errors and until == float("inf"):
                leave_at = now + _TOGETHER_SECONDS
                until = now + float(str(settings.read(os.environ)["grace_seconds"]))
            if set(ranks.values()) <= {culprit(error) for error in errors.values()}:
                until = min(until, now + _CULPRIT_SECONDS)
            if now >= leave_at:
                leave_at = float("inf")
                for rank in errors:
                    self._workers[rank].leave.remote()
        if errors:
            self._raise(errors)
        return [values[rank] for rank in range(len(refs))]

    def _raise(self, errors: Mapping[int, BaseException]) -> None:
        """Raises the error that the others follow from."""
        for rank, error in errors.items():
            if isinstance(error, RayActorError):
                raise RankFailed(self._told(rank, one_line(error)), rank) from error
        first = next(iter(errors.values()))
        lost = culprit(first)
        if lost is not None and lost in errors:
            raise errors[lost]
        if lost is not None:
            raise RankFailed(self._told(lost, str(first)), lost) from first
        raise first

    def _told(self, rank: int, why: str) -> str:
        return f"rank {rank} on {self._seats[rank].host} died: {why}"

    def shutdown(self) -> None:
        """Ends the workers, and gives their resources back."""
        for worker in self._workers:
            with contextlib.suppress(RayError):
                ray.kill(worker)
        self._workers, self._seats = [], []
        if self._placement is not None:
            self._placement.remove()
            self._placement = None


def culprit(error: BaseException) -> int | None:
    """The rank whose death an error tells of."""
    cause = getattr(error, "cause", error)  # Ray's own class has the rank's exception there
    return cause.culprit if isinstance(cause, PeerLost) else None


def _variables(seats: Sequence[Seat], common: Mapping[str, str]) -> list[dict[str, str]]:
    """The variables of each rank."""
    job = {
        "HOROACC_SECRET": secrets.token_hex(32),
        **meeting_variables(seats[0].address, seats[0].master_port),
        **common,
    }
    found = []
    for place, seat in zip(host_places([seat.node for seat in seats]), seats, strict=True):
        own = place.variables() | {"HOROVOD_HOSTNAME": seat.host}
        # All GPUs of the node's ranks, by local rank, so that they reach each other's.
        if gpus := [gpu for other in seats if other.node == seat.node for gpu in other.gpus]:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        found.append(own | job)
    return found


@contextlib.contextmanager
def _heard(callbacks: Sequence[Callable[[Any], Any]]) -> Iterator[Queue]:
    """Makes a queue whose elements go to callbacks, in a thread; raises what they raised."""
    queue = Queue(actor_options={"num_cpus": 0})
    over = threading.Event()
    failures: list[BaseException] = []

    def listen() -> None:
        try:
            while True:
                last = over.is_set()
                try:
                    told = queue.get(timeout=_LOOK_SECONDS)
                except Empty:
                    if last:
                        return
                    continue
                for callback in callbacks:
                    callback(told)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=listen, name="horoacc-callbacks", daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        over.set()
        thread.join()
        queue.shutdown(force=True)
    if failures:
        raise failures[0]
