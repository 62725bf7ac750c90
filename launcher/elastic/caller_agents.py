"""Agents that the caller's process starts, for it is connected to the cluster: Ray's, or another.

A socket pair connects that process with the job's, the coordinator. Each message is a line of JSON:
the caller tells which hosts there are and which agents have ended, the job which agents it needs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from horoacc.launcher.elastic.caller_discovery import Discovery, asked_again
from horoacc.launcher.hosts import Host
from horoacc.launcher.supervise import Supervisor

VARIABLE = "HOROACC_CALLER_AGENTS"
"""Tells the job's process its end, an address of this machine and a secret: `FD ADDRESS SECRET`."""
_KEPT = ("HOROACC_", "HOROVOD_")


class Cluster(Protocol):
    """A cluster that the caller's process is connected to. Threads of that process call it."""

    address: str
    """An address of the caller's machine at which the hosts reach it."""

    @property
    def discovery(self) -> Discovery:
        """Finds the hosts."""

    def start_agent(
        self, host: str, number: int, environ: Mapping[str, str], lost: Callable[[str], None]
    ) -> None:
        """Starts an agent: `python -m horoacc.launcher.elastic.agent NUMBER HOST`.

        Args:
            host: A host that `discovery` has found.
            number: The agent's.
            environ: Variables that it gets besides those of its host.
            lost: Is told why, if the agent ends, or could not be started.
        """

    def stop_agent(self, host: str) -> None:
        """Ends the agent of a host, if it is still there."""


@contextlib.contextmanager
def serve(cluster: Cluster) -> Iterator[socket.socket]:
    """In the caller's process: starts the agents that a job asks for.

    Args:
        cluster: Starts them.

    Yields:
        The job's end of the pair.

    Raises:
        Exception: That of the first question for hosts.
    """
    own, theirs = socket.socketpair()
    lock = threading.Lock()

    def tell(**message: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the job is over
            own.sendall(json.dumps(message).encode() + b"\n")

    def lost(number: int, why: str) -> None:
        tell(kind="lost", number=number, why=why)

    def listen() -> None:
        with contextlib.suppress(OSError), own.makefile("rb") as lines:
            for line in lines:
                asked = json.loads(line)
                if asked["kind"] == "stop":
                    cluster.stop_agent(asked["host"])
                    continue
                gone = functools.partial(lost, asked["number"])
                try:
                    cluster.start_agent(asked["host"], asked["number"], asked["environ"], gone)
                except Exception as error:
                    gone(f"no agent can be started there: {error}")

    thread = threading.Thread(target=listen, name="horoacc-agents", daemon=True)
    try:
        with asked_again(cluster.discovery, lambda found: tell(kind="hosts", hosts=found)):
            thread.start()
            yield theirs
    finally:
        theirs.close()
        with contextlib.suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)
        if thread.ident is not None:
            thread.join(5.0)
        own.close()


class Caller(NamedTuple):
    """The caller, as the job's process knows it."""

    link: socket.socket
    address: str
    secret: str
    """The job's; empty: the job draws one."""

    @staticmethod
    def of(environ: dict[str, str] | os._Environ[str]) -> Caller | None:
        """Takes what `VARIABLE` says out of the environment."""
        told = environ.pop(VARIABLE, "")
        if not told:
            return None
        number, address, secret = told.split(" ")
        return Caller(socket.socket(fileno=int(number)), address, secret)


class CallerAgents:
    """In the job's process: asks the caller for agents, and hears from it which hosts there are."""

    def __init__(
        self, loop: Supervisor, link: socket.socket, environ: Callable[[], Mapping[str, str]]
    ) -> None:
        """Begins to listen.

        Args:
            loop: Reads what the caller tells.
            link: This end of the pair.
            environ: Gives the variables of agents and workers.
        """
        self._loop = loop
        self._link = link
        self._environ = environ
        self._lost: dict[int, Callable[[str], None]] = {}
        self._hosts: list[Host] | None = None
        self._found: Callable[[list[Host]], None] | None = None
        self._rest = b""
        loop.watch(link.fileno(), self._hear)

    # --- the engine of agents -----------------------------------------------------------------

    def start_agent(self, host: str, number: int, lost: Callable[[str], None]) -> None:
        """Asks for the agent of a host; `lost` is told why, if it ends or cannot be started."""
        self._lost[number] = lost
        given = {
            name: text
            for name, text in self._environ().items()
            if name.startswith(_KEPT) or os.environ.get(name) != text
        }
        self._tell(kind="start", host=host, number=number, environ=given)

    def stop(self, host: str) -> None:
        """Has the agent of a host ended, if it is still there."""
        self._tell(kind="stop", host=host)

    def end(self) -> None:
        """Leaves it to the caller to end the agents that are left: it sees this process end."""

    # --- discovery ----------------------------------------------------------------------------

    def start(self, found: Callable[[list[Host]], None]) -> None:
        """Gives the hosts whenever the caller tells them."""
        self._found = found
        if self._hosts is not None:
            found(self._hosts)

    def close(self) -> None:
        """Lets the caller see that the job is over; the loop is."""
        self._link.close()

    def _tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the caller is gone, and ends this process
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def _hear(self) -> None:
        try:
            data = self._link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:  # the caller is gone, and this process with it
            self._loop.unwatch(self._link.fileno())
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if told["kind"] == "lost":
                if (lost := self._lost.pop(told["number"], None)) is not None:
                    lost(told["why"])
            else:
                self._hosts = [Host(name, int(count)) for name, count in told["hosts"].items()]
                if self._found is not None:
                    self._found(self._hosts)
