"""A job of `run`: as many ranks as Spark has tasks for it, each the child of one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from horoacc.launcher.children import ending
from horoacc.launcher.elastic.channel import Message
from horoacc.launcher.output import RankStream
from horoacc.launcher.places import host_places
from horoacc.spark.tasks import Task, Tasks

_NEVER = float("inf")


class FixedJob:
    """The ranks of one job. The first that fails ends it, after a time of grace for the others."""

    def __init__(
        self,
        tasks: Tasks,
        size: int,
        grace: float,
        environ: Mapping[str, str],
        keep: Callable[[str, bytes], object],
        **start: Any,
    ) -> None:
        """Waits for tasks.

        Args:
            tasks: Those of the job, which has not begun.
            size: The number of ranks.
            grace: How long, in seconds, ranks may take to end after one has failed.
            environ: More variables of the ranks.
            keep: Takes what a rank gives back, by name.
            start: What tasks are told besides when their ranks are to start.
        """
        self.failed: int | None = None
        """The rank that failed first."""
        self.how = ""
        """How it ended."""
        self._tasks = tasks
        self._size = size
        self._grace = grace
        self._environ = environ
        self._keep = keep
        self._start = start
        self._came: list[Task] = []
        self._ranks: dict[str, int] = {}  # by the names of tasks
        self._streams: dict[int, dict[str, RankStream]] = {}
        self._live: set[int] = set()
        self._status = 0
        self._due, self._number, self._killed = _NEVER, signal.SIGTERM, False

    @property
    def begun(self) -> bool:
        """Whether all tasks were there, so that ranks have started."""
        return bool(self._ranks)

    @property
    def present(self) -> int:
        """How many tasks are there."""
        return len(self._came)

    @property
    def finished(self) -> bool:
        """Whether all ranks have ended."""
        return self.begun and not self._live

    def on_time(self) -> None:
        """Ends ranks that go on although another has failed."""
        if time.monotonic() >= self._due:
            for task in self._came:
                if self._ranks[task.name] in self._live:
                    self._tasks.tell(task, kind="signal", number=int(self._number))
                    if self._killed:  # and its task says nothing of it
                        where = f"its Spark task {task.index} on {task.node}"
                        self._ended(self._ranks[task.name], -9, f"{where} does not answer")
            self._killed = self._number == signal.SIGKILL
            self._due, self._number = time.monotonic() + self._grace, signal.SIGKILL

    def came(self, task: Task) -> bool:
        """Takes a task, and starts all ranks once the last is there."""
        if self.begun:
            return False  # Spark has started a task again that is lost
        self._came.append(task)
        if len(self._came) == self._size:
            self._begin()
        return True

    def _begin(self) -> None:
        came = sorted(self._came, key=lambda task: task.index)
        places = host_places([task.node for task in came])
        order = sorted(zip(places, came, strict=True), key=lambda pair: pair[0].rank)
        first = order[0][1]
        for place, task in order:
            self._ranks[task.name] = place.rank
            self._live.add(place.rank)
            names = ("stdout", "stderr")
            self._streams[place.rank] = {n: self._tasks.stream(place.rank, n) for n in names}
            self._tasks.tell(
                task, kind="rank", place=place, address=first.address,
                master_port=first.master_port, environ=dict(self._environ), **self._start,
            )  # fmt: skip

    def heard(self, task: Task, message: Message) -> None:
        """A rank prints, or ends."""
        rank = self._ranks[task.name]
        if message["kind"] == "output":
            self._streams[rank][message["stream"]].feed(message["body"])
        elif message["kind"] == "ended":
            self._ended(rank, int(message["status"]), ending(int(message["status"])))

    def result(self, name: str, body: bytes) -> None:
        """A rank gives something back."""
        self._keep(name, body)

    def gone(self, task: Task, why: str) -> None:
        """A task is lost, and its rank with it."""
        if not self.begun:
            self._came.remove(task)  # Spark starts it again, or fails
        else:
            where = f"its Spark task {task.index} on {task.node}"
            self._ended(self._ranks[task.name], -9, f"is gone with {where}: {why}")

    def _ended(self, rank: int, status: int, how: str) -> None:
        if rank not in self._live:
            return
        self._live.discard(rank)
        for stream in self._streams[rank].values():
            stream.end()
        # Others fail because a rank was killed, and may say so first.
        killed = status < 0 and self._status > 0 and self._number == signal.SIGTERM
        if status != 0 and (self.failed is None or killed):
            self._status = status
            self.failed = rank
            tail = [line.decode(errors="replace") for line in self._streams[rank]["stderr"].tail]
            said = "its last lines on stderr:" if tail else "it had printed nothing on stderr"
            self.how = "\n".join([f"{how}; {said}", *tail])
            self._due = time.monotonic() + self._grace
