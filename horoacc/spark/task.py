"""One Spark task of a job: it starts a rank, or an agent of an elastic job, and watches it.

Runs in the Python process that Spark has for the task. The caller of `run` orders what is to be
started, over an authenticated connection, and hears of output, results and ends. What was started
dies with this process, and is ended once the caller is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from horoacc import dropin
from horoacc.launcher.children import DRAIN_SECONDS, start_piped
from horoacc.launcher.courier import VARIABLE, Courier
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message, dial
from horoacc.launcher.places import MeetingPoint, Place, meeting_variables
from horoacc.launcher.processes import (
    Watchdog,
    adopt_orphans,
    descendants,
    die_with_parent,
    signal_group,
)
from horoacc.launcher.shim import hold_secret

_DIAL_SECONDS = 30.0
_CHUNK = 1 << 16
_PART = 4 << 20  # of a result, in one message
_COURIER_SECONDS = 30.0


@dataclass(frozen=True)
class Order:
    """What every task of a job knows."""

    address: str
    """host:port of the caller."""
    secret: str
    call: bytes
    """The pickled function."""
    path: tuple[str, ...]
    """Where the caller finds modules."""
    silence: float
    """After how long the caller's host is gone, if it does not answer."""


class Restart(RuntimeError):
    """This task cannot serve the job any more, and Spark is to start it again elsewhere."""


def serve(index: int, order: Order) -> None:
    """Serves one job to its end.

    Args:
        index: Of the task's partition.
        order: The job's.

    Raises:
        Restart: The agent of an elastic job is lost.
    """
    try:
        channel = dial(order.address, order.secret, _DIAL_SECONDS, order.silence)
    except ChannelError:
        return  # the job is over: Spark has started a lost task once more, or had no slot before
    with contextlib.closing(channel):
        _Task(channel, index, order).run()


class _Task:
    def __init__(self, channel: Channel, index: int, order: Order) -> None:
        self._channel = channel
        self._over = self._restart = False
        self._sent = 0  # parts of results
        self._child = _Child(self._tell)
        path = [*sys.path, *(entry for entry in order.path if entry not in sys.path)]
        self._courier = Courier(order.call, path, self._result)
        # The connection proves the secret and encrypts nothing, so the secret comes with Spark's.
        self._known = {VARIABLE: self._courier.name}
        self._secret = hold_secret(order.secret, self._known)
        self._meeting = MeetingPoint(channel.link.getsockname()[0])
        context = TaskContext.get()
        self._tell(
            kind="task",
            index=index,
            attempt=context.taskAttemptId() if context else 0,
            node=socket.gethostname(),
            address=self._meeting.address,
            master_port=self._meeting.master_port,
        )

    def run(self) -> None:
        """Serves until the caller ends it, or is gone."""
        try:
            while not self._over:
                ready = self._child.wait(self._channel.fileno())
                if self._channel.fileno() in ready:
                    for message in self._channel.receive():
                        self._take(message)
                self._child.read(ready)
                if self._child.ended:
                    self._tell_end()
        except ChannelError:
            return  # the caller is gone
        finally:
            self._child.close()
            self._courier.close(0.1)
            self._meeting.close()
            os.close(self._secret)
        if self._restart:
            raise Restart("the agent of this task is lost")

    def _tell_end(self) -> None:
        """What ranks have sent comes before the news of the end, while any of it gets through."""
        status, number = self._child.take_end()
        sent = -1
        while sent != self._sent:
            sent = self._sent
            self._courier.close(_COURIER_SECONDS)
        self._tell(kind="ended", status=status, number=number)

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "rank":
            self._start_rank(message)
        elif kind == "agent":
            environ = {**os.environ, **message["environ"], **self._known}
            number = int(message["number"])
            command = ["-m", "horoacc.launcher.elastic.agent", str(number), message["host"]]
            self._child.start([sys.executable, *command], environ, number, [self._secret])
        elif kind == "signal":
            self._child.signal(int(message["number"]))
        elif kind == "restart":
            self._over = self._restart = True
        elif kind == "end":
            self._over = True

    def _start_rank(self, message: Message) -> None:
        environ = {**os.environ, **message["environ"], **self._known}
        if message["as_horovod"]:
            dropin.for_children(environ)
        place = Place(*map(int, message["place"]))
        environ |= place.variables()
        environ |= meeting_variables(message["address"], int(message["master_port"]))
        lent = []
        if place.rank == 0:
            lent.append(self._meeting.lend())
            environ["HOROACC_RENDEZVOUS_FD"] = str(lent[0])
        else:
            self._meeting.close()
        call = "from horoacc.launcher.courier_rank import main; main()"
        command = [message["executable"] or sys.executable, "-c", call]
        self._child.start(command, environ, None, [self._secret, *lent])
        for fd in lent:
            os.close(fd)

    def _result(self, name: str, body: bytes) -> None:
        """Sends what a rank gave back, in parts. The courier's threads call it."""
        with contextlib.suppress(ChannelError):  # the reader of the connection notices its end
            for at in range(0, max(len(body), 1), _PART):
                last = at + _PART >= len(body)
                part = body[at : at + _PART]
                self._channel.send({"kind": "result", "name": name, "last": last, "body": part})
                self._sent += 1

    def _tell(self, **message: Any) -> None:
        self._channel.send(message)


class _Child:
    """The process that a task has started, if any, and its pipes."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._watchdog: Watchdog | None = None
        self._spared: set[int] = set()
        self._pid = self._pidfd = -1
        self._number: int | None = None
        self._status: int | None = None
        self._pipes: dict[int, str] = {}

    @property
    def ended(self) -> bool:
        """Whether it has ended, and all that it printed was read."""
        return self._status is not None and not self._pipes

    def start(
        self,
        command: list[str],
        environ: dict[str, str],
        number: int | None,
        passed: Sequence[int],
    ) -> None:
        """Starts it; an agent has a number, and prints to this process's own stderr."""
        if self._watchdog is None:
            self._spared = descendants(os.getpid())
            adopt_orphans()
            self._watchdog = watchdog = Watchdog()
        else:
            watchdog = self._watchdog
        die = die_with_parent()

        def prepare() -> None:
            die()
            watchdog.add(os.getpid())

        self._number, self._status = number, None
        try:
            if number is None:
                pid, stdout, stderr = start_piped(
                    command, environ, subprocess.DEVNULL, prepare, passed
                )
                self._pipes = {stdout: "stdout", stderr: "stderr"}
            else:
                child = subprocess.Popen(
                    command, env=environ, stdin=subprocess.DEVNULL,
                    pass_fds=passed, start_new_session=True, preexec_fn=prepare,
                )  # fmt: skip
                pid, child.returncode = child.pid, 0  # this object waits for it
        except OSError as error:
            text = f"cannot start '{command[0]}': {error.strerror}\n".encode()
            self._tell(kind="output", stream="stderr", body=text)
            self._status = 127
            return
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def wait(self, also: int) -> set[int]:
        """Waits for the process, its pipes and another descriptor; gives those that are ready."""
        poll = select.poll()
        for fd in (also, *self._pipes, *([self._pidfd] if self._pidfd >= 0 else [])):
            poll.register(fd, select.POLLIN)
        lasts = self._pidfd < 0 and self._pipes
        found = poll.poll(int(1000 * DRAIN_SECONDS) if lasts else None)
        if lasts and not found:
            # Processes that it started hold the pipes: they end with it.
            signal_group(self._pid, signal.SIGKILL)
            for fd in self._pipes:
                os.close(fd)
            self._pipes.clear()
        return {fd for fd, _ in found}

    def read(self, ready: set[int]) -> None:
        """Reads what is there."""
        for fd in ready & set(self._pipes):
            data = os.read(fd, _CHUNK)
            if data:
                self._tell(kind="output", stream=self._pipes[fd], body=data)
            else:
                os.close(fd)
                del self._pipes[fd]
        if self._pidfd in ready:
            os.close(self._pidfd)
            self._pidfd = -1
            _, status = os.waitpid(self._pid, 0)
            self._status = os.waitstatus_to_exitcode(status)

    def take_end(self) -> tuple[int, int | None]:
        """Gives its status and number, once."""
        status, self._status = self._status, None
        assert status is not None
        return status, self._number

    def signal(self, number: int) -> None:
        """Sends a signal to its process group."""
        if self._pidfd >= 0:
            signal_group(self._pid, number)

    def close(self) -> None:
        """Kills what is left of it."""
        for fd in self._pipes:
            os.close(fd)
        if self._watchdog is None:
            return
        if self._pid >= 0:
            signal_group(self._pid, signal.SIGKILL)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
        for pid in descendants(os.getpid(), {*self._spared, self._watchdog.pid}):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self._watchdog.dismiss()
        for folder in Path(tempfile.gettempdir()).glob(f"horoacc-run-{self._pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)
