"""The agent of an elastic job on one host: starts, watches and ends its workers.

Runs as `python -m horoacc.launcher.elastic.agent NUMBER HOST`, with the coordinator's address and
the job's secret in the environment. It carries the workers' output to the coordinator. Its workers
die with it, and it ends them and itself once the coordinator is gone.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections import deque

from horoacc import job_secret, settings
from horoacc.launcher import cores
from horoacc.launcher.children import Rank, start_piped
from horoacc.launcher.elastic.agent_looks import AgentLooks
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message, dial
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import adopt_orphans, die_with_parent, signal_group
from horoacc.launcher.shim import hold_secret
from horoacc.launcher.supervise import Supervisor

_DIAL_SECONDS = 30.0
# Variables of the program that started this agent; a worker is no rank of its job.
_FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDI_", "MPI_LOCAL")


def worker_environ(number: int, host: str, slots: int) -> dict[str, str]:
    """The variables of a worker, which shares its host's cores with as many as have slots there."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
    environ.setdefault("OMP_NUM_THREADS", str(max(1, cores.usable() // max(1, slots))))
    return environ | {"HOROACC_WORKER": str(number), "HOROVOD_HOSTNAME": host}


class Relay:
    """A stream of a worker, whose bytes go to the coordinator."""

    def __init__(self, agent: AgentLoop, worker: int, name: str) -> None:
        self._agent = agent
        self._worker = worker
        self._name = name
        self._ended = False
        self.tail: deque[bytes] = deque()  # the coordinator keeps the last lines

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come from the pipe; none are its end."""
        if not self._ended:
            self._ended = not data
            self._agent.tell(
                {"kind": "output", "worker": self._worker, "stream": self._name, "body": data}
            )

    def end(self) -> None:
        """The stream ends."""
        self.feed(b"")


class AgentLoop(Supervisor):
    """The loop of an agent. Workers are its ranks, by their numbers."""

    def __init__(self, channel: Channel, host: str, number: int, grace: float, secret: int) -> None:
        super().__init__(Printer(os.environ), 0, grace)
        self._channel = channel
        self._host = host
        self._secret = secret  # its descriptor
        self._done = False
        self._looks = AgentLooks(self, os.environ["HOROACC_COORDINATOR"], self.tell)
        self.watch(channel.fileno(), self._hear)
        self.tell({"kind": "agent", "host": host, "number": number})

    def tell(self, message: Message) -> None:
        """Sends a message to the coordinator, if it is there."""
        if self._done:
            return
        try:
            self._channel.send(message)
        except ChannelError:
            self._lose_coordinator()

    def rank_ended(self, number: int, status: int) -> None:
        """Tells of a worker's end."""
        rank = self.ranks[number]
        if rank.status is None:
            rank.status = status
            rank.ended_at = time.monotonic()
            self.tell({"kind": "ended", "worker": number, "status": status})

    def stop(self, number: int) -> None:
        """A signal to this agent: the host is to be left, and the coordinator arranges that."""
        self.tell({"kind": "drain"})

    def _finished(self) -> bool:
        return self._done

    def _hear(self) -> None:
        try:
            for message in self._channel.receive():
                self._take(message)
        except (ChannelError, ValueError):
            self._lose_coordinator()

    def _lose_coordinator(self) -> None:
        if not self._done:
            self._done = True  # the loop ends, and with it all workers
            self.unwatch(self._channel.fileno())

    def _take(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "start":
            self._start(int(message["worker"]), list(message["command"]), int(message["slots"]))
        elif kind == "signal":
            rank = self.ranks.get(int(message["worker"]))
            if rank is not None and rank.status is None:
                signal_group(rank.group, int(message["number"]))
        elif kind in ("ask", "more", "answer"):
            self._looks.take(message)
        elif kind == "finish":
            self._lose_coordinator()

    def _start(self, number: int, command: list[str], slots: int) -> None:
        environ = worker_environ(number, self._host, slots)
        if command[0] == environ.get("HOROACC_CALLER_PYTHON"):
            command = [sys.executable, *command[1:]]  # another path on this host, maybe
        die = die_with_parent()

        def prepare() -> None:
            die()
            self.watchdog.add(os.getpid())

        try:
            pid, stdout, stderr = start_piped(
                command, environ, subprocess.DEVNULL, prepare, [self._secret]
            )
        except OSError as error:
            text = f"horoaccrun: cannot start '{command[0]}': {error.strerror}\n".encode()
            for name, body in (("stderr", text), ("stderr", b""), ("stdout", b"")):
                self.tell({"kind": "output", "worker": number, "stream": name, "body": body})
            self.tell({"kind": "ended", "worker": number, "status": 127})
            return
        pipes = {
            name: (fd, Relay(self, number, name))
            for name, fd in (("stdout", stdout), ("stderr", stderr))
        }
        self.ranks[number] = Rank(self, number, pid, pipes)
        self.watchdog.add(pid)
        self.on_child_end(pid, functools.partial(self.rank_ended, number))


def main() -> int:
    """Runs an agent until the coordinator lets it go, or is gone."""
    number, host = int(sys.argv[1]), sys.argv[2]
    try:
        address, secret = os.environ["HOROACC_COORDINATOR"], job_secret.environ()["HOROACC_SECRET"]
        held = hold_secret(secret, os.environ)
        silence = float(str(settings.read(os.environ)["host_timeout_seconds"]))
        channel = dial(address, secret, _DIAL_SECONDS, silence)
    except ChannelError as error:
        print(f"horoaccrun: the agent on {host} cannot reach {error}", file=sys.stderr)
        return 1
    adopt_orphans()
    AgentLoop(channel, host, number, 0.0, held).run()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
