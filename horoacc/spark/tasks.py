"""The Spark tasks of one job, as the process that called `run` sees them.

Spark starts the tasks; each connects here (`task`) and proves the job's secret. A thread runs
Spark's own job meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark import InheritableThread, SparkContext

from horoacc import settings
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.door import Door, drop, tell
from horoacc.launcher.output import Printer, RankStream
from horoacc.spark.task import Order, serve

# Between the word that a job is over and the end of its tasks.
_END_SECONDS = 10.0


@dataclass(eq=False)
class Task:
    """A task that has come."""

    name: str
    index: int
    node: str
    """Its host's name."""
    address: str
    """Where its rank would listen as rank 0."""
    master_port: int
    channel: Channel
    parts: dict[str, bytearray] = field(default_factory=dict)
    """What has come of results."""


class Owner(Protocol):
    """The job."""

    def came(self, task: Task) -> bool:
        """A task has come; says whether the job wants it."""

    def heard(self, task: Task, message: Message) -> None:
        """A task says something else than a result."""

    def result(self, name: str, body: bytes) -> None:
        """A rank has given something back."""

    def gone(self, task: Task, why: str) -> None:
        """A task has ended."""


class Tasks:
    """All tasks of one job. Its loop belongs to one thread, and any thread may `tell` a task."""

    def __init__(self, context: SparkContext, printer: Printer, call: bytes, size: int) -> None:
        """Starts nothing yet.

        Args:
            context: Spark's.
            printer: Where lines go.
            call: The pickled function.
            size: How many tasks there are to be.
        """
        self.owner: Owner
        self.address = _address(context)
        self.secret = secrets.token_hex(32)
        self.failure = ""
        """Why Spark's job has failed."""
        self.failed_at = 0.0
        self._context = context
        self._printer = printer
        self._call = call
        self._size = size
        self._selector = selectors.DefaultSelector()
        self._silence = float(str(settings.read(os.environ)["host_timeout_seconds"]))
        self._door = Door(self, self.secret, self._silence, self._greet)
        self._tasks: list[Task] = []
        self._spark = InheritableThread(target=self._run_spark, name="horoacc-spark", daemon=True)
        self._group = f"horoacc-{secrets.token_hex(4)}"
        self._over = False

    def start(self, barrier: bool) -> None:
        """Has Spark start the tasks, all at once if they have a barrier."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self._door.open(self.address, family)
        self._barrier = barrier
        self._spark.start()

    @property
    def ended(self) -> bool:
        """Whether Spark's job has ended."""
        return not self._spark.is_alive()

    def turn(self, seconds: float) -> bool:
        """Waits for news, at most so long, and takes it; says whether there was any."""
        self._door.on_time(time.monotonic())
        ready = self._selector.select(seconds)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def tell(self, task: Task, **message: Any) -> None:
        """Sends a task a message, if it is there."""
        tell(task.channel, message)

    def close(self, interrupt: bool) -> None:
        """Ends the tasks, and waits for Spark to see that.

        Args:
            interrupt: Whether tasks that do not end by themselves are cancelled at once.
        """
        self._over = True
        self._door.close()
        for task in self._tasks:
            tell(task.channel, {"kind": "end"})
        if not interrupt:
            self._spark.join(_END_SECONDS)
        if self._spark.is_alive():
            with contextlib.suppress(Exception):  # Spark is gone
                self._context.cancelJobGroup(self._group)
            self._spark.join(_END_SECONDS)
        for task in self._tasks:
            drop(self, task.channel)
        self._selector.close()

    # --- the loop -----------------------------------------------------------------------------

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Calls `ready` whenever `fd` can be read."""
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def unwatch(self, fd: int) -> None:
        """Ends `watch`."""
        self._selector.unregister(fd)

    def stream(self, rank: int, name: str) -> RankStream:
        """A new stream of a rank's output."""
        return RankStream(rank, name, self._printer)

    # --- connections --------------------------------------------------------------------------

    def _greet(self, channel: Channel, hello: Message, more: list[Message]) -> None:
        if hello.get("kind") != "task":
            channel.close()
            return
        name = f"{hello['node']}-task{hello['index']}.{hello['attempt']}"
        place = {key: hello[key] for key in ("index", "node", "address", "master_port")}
        task = Task(name, **place, channel=channel)
        if not self.owner.came(task):
            channel.close()
            return
        self._tasks.append(task)
        self.watch(channel.fileno(), functools.partial(self._hear, task, channel.receive))
        self._hear(task, lambda: more)

    def _hear(self, task: Task, receive: Callable[[], list[Message]]) -> None:
        try:
            for message in receive():
                self._take(task, message)
        except (ChannelError, ValueError, KeyError) as error:
            self._tasks.remove(task)
            drop(self, task.channel)
            self.owner.gone(task, str(error))

    def _take(self, task: Task, message: Message) -> None:
        if message["kind"] != "result":
            self.owner.heard(task, message)
            return
        name = str(message["name"])
        task.parts.setdefault(name, bytearray()).extend(message.get("body", b""))
        if message["last"]:
            self.owner.result(name, bytes(task.parts.pop(name)))

    # --- Spark's job --------------------------------------------------------------------------

    def _run_spark(self) -> None:
        order = Order(self._door.address, self.secret, self._call, tuple(sys.path), self._silence)

        def one(index: int, _: Any) -> list[int]:
            serve(index, order)
            return []

        try:
            self._context.setJobGroup(self._group, "horoacc.spark", interruptOnCancel=True)
            slices = self._context.parallelize(range(self._size), self._size)
            if self._barrier:
                slices.barrier().mapPartitionsWithIndex(one).collect()
            else:
                slices.mapPartitionsWithIndex(one).collect()
        except Exception as error:
            if not self._over:
                self.failed_at = time.monotonic()
                self.failure = _reason(error)


def _address(context: SparkContext) -> str:
    """An address of this machine at which Spark's executors reach it, as they reach the driver."""
    host = context.getConf().get("spark.driver.host") or socket.gethostname()
    for family, _, _, _, where in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((where[0], 0))
            return str(where[0])
    raise RuntimeError(
        f"spark.driver.host is {host}, a foreign host: executors must reach this machine there"
    )


def _reason(error: Exception) -> str:
    """The line of Spark's exception that says why."""
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(java.getMessage() if java else error).splitlines()]
    raised = [line for line in lines if line and not line.startswith(("at ", "File ", "Traceback"))]
    named = [line for line in raised if "Error: " in line or line.endswith("Restart: ")]
    why = (named or raised or [type(error).__name__])[-1 if named else 0]
    if "No module named 'horoacc'" in why:
        return (
            "the Python of Spark's executors cannot import horoacc: install it there, or set "
            "PYSPARK_PYTHON to a Python that has it"
        )
    return why
