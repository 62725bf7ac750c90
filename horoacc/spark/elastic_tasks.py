"""The cluster of an elastic job: Spark's tasks, each attempt a host of its own with one slot."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping

from horoacc.launcher.elastic.channel import Message
from horoacc.spark.tasks import Task, Tasks

_TURN_SECONDS = 0.1
# Once the coordinator is gone, agents end at once.
_QUIET_SECONDS = 30.0


class ElasticTasks:
    """Tasks as the hosts of an elastic job: `horoacc.launcher.elastic.caller_agents.Cluster`.

    A task that Spark starts again is another host, for it may be on another machine. A task whose
    agent is lost ends with an error, so that Spark starts it again.
    """

    def __init__(
        self, tasks: Tasks, keep: Callable[[str, bytes], object], environ: Mapping[str, str]
    ) -> None:
        """Waits for tasks.

        Args:
            tasks: Those of the job.
            keep: Takes what a rank gives back, by name.
            environ: More variables of agents and ranks.
        """
        self.address = tasks.address
        self.discovery = self
        self._tasks = tasks
        self._keep = keep
        self._environ = environ
        self._lock = threading.Lock()
        self._came: dict[str, Task] = {}
        self._lost: dict[str, Callable[[str], None]] = {}  # of the agents that have not ended

    @property
    def present(self) -> int:
        """How many tasks are there."""
        return len(self._came)

    def drain(self) -> None:
        """After the job's end: hears the tasks until their agents have ended.

        By then all results are there. It gives up once no task has said anything for a while.
        """
        due = time.monotonic() + _QUIET_SECONDS
        while self._lost and time.monotonic() < due:
            if self._tasks.turn(_TURN_SECONDS):
                due = time.monotonic() + _QUIET_SECONDS

    # --- for the job --------------------------------------------------------------------------

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Gives the tasks that are there, the oldest first."""
        with self._lock:
            return dict.fromkeys(self._came, 1)

    def start_agent(
        self, host: str, number: int, environ: Mapping[str, str], lost: Callable[[str], None]
    ) -> None:
        """Has a task start an agent; `lost` is told why, if it ends."""
        with self._lock:
            task = self._came.get(host)
            if task is not None:
                self._lost[host] = lost
        if task is None:
            lost("its Spark task is gone")
        else:
            all_of_them = {**self._environ, **environ}
            all_of_them.pop("HOROACC_SECRET", None)  # the task has it
            self._tasks.tell(task, kind="agent", number=number, host=host, environ=all_of_them)

    def stop_agent(self, host: str) -> None:
        """Ends a task whose agent is lost, so that Spark starts it again."""
        with self._lock:
            task = self._came.pop(host, None)
            self._lost.pop(host, None)
        if task is not None:
            self._tasks.tell(task, kind="signal", number=int(signal.SIGKILL))
            self._tasks.tell(task, kind="restart")

    # --- what tasks tell ----------------------------------------------------------------------

    def came(self, task: Task) -> bool:
        """Takes a task: a new host."""
        with self._lock:
            self._came[task.name] = task
        return True

    def heard(self, task: Task, message: Message) -> None:
        """The agent of a task has ended."""
        if message["kind"] == "ended":
            self._end(task, f"its agent ended with status {message['status']}")

    def result(self, name: str, body: bytes) -> None:
        """A rank gives something back."""
        self._keep(name, body)

    def gone(self, task: Task, why: str) -> None:
        """A task is lost, and its host with it."""
        with self._lock:
            self._came.pop(task.name, None)
        self._end(task, f"its Spark task is gone: {why}")

    def _end(self, task: Task, why: str) -> None:
        with self._lock:
            lost = self._lost.pop(task.name, None)
        if lost is not None:
            lost(why)
