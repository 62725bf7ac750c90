"""The pods of an elastic job: the coordinator, in the first, hears from all, and asks for agents.

Nobody starts a pod from here: the Indexed Job does, as often as its `completions` say. A pod that
has come is a host; one that is gone is lost, and a pod that replaces it is another host.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from horoacc.launcher.children import MpirunProcess, start_piped
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message
from horoacc.launcher.elastic.door import Door, drop, tell
from horoacc.launcher.hosts import Host
from horoacc.launcher.kubernetes.pods import Pod, PodError
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.supervise import Supervisor

_KEPT = ("HOROACC_", "HOROVOD_")


class PodHosts:
    """In the first pod: which pods there are, and their agents."""

    def __init__(
        self,
        loop: Supervisor,
        pod: Pod,
        silence: float,
        environ: Callable[[], Mapping[str, str]],
        outcome: Callable[[], int],
    ) -> None:
        """Listens at the port of the manifest, and has this pod call there, too.

        Args:
            loop: Reads what pods tell.
            pod: This one.
            silence: After so many seconds without an answer a pod is gone.
            environ: Gives the variables of agents and workers.
            outcome: Gives the exit code of the pods when the job is over.

        Raises:
            PodError: The port is taken, or this pod has no address.
        """
        self._loop = loop
        self._pod = pod
        self._environ = environ
        self._outcome = outcome
        self._pods: dict[str, tuple[Channel, int]] = {}
        self._known: dict[str, int] = {}
        self._lost: dict[int, Callable[[str], None]] = {}
        self._found: Callable[[list[Host]], None] = lambda _: None
        self._door = Door(loop, pod.secret, silence, self._greet)
        port = int(pod.rendezvous.rpartition(":")[2])
        try:
            self._door.open(*pod.own_address(), port)
        except OSError as error:
            text = f"port {port} (HOROACC_RENDEZVOUS) cannot be had: {error.strerror}"
            raise PodError(text) from None
        loop.timers.append(self._door.on_time)
        own = [sys.executable, "-m", "horoacc.launcher.kubernetes.host", *sys.argv[1:]]
        pid, stdout, stderr = start_piped(own, os.environ, subprocess.DEVNULL, die_with_parent())
        process = MpirunProcess(loop, pid, {"stdout": stdout, "stderr": stderr}, loop.printer.plain)
        loop.watchdog.add(pid)
        loop.on_child_end(pid, process.ended)

    # --- the engine of agents -----------------------------------------------------------------

    def start_agent(self, host: str, number: int, lost: Callable[[str], None]) -> None:
        """Asks a pod for its agent; OSError: the pod is gone."""
        given = {
            name: text
            for name, text in self._environ().items()
            if (name.startswith(_KEPT) or os.environ.get(name) != text) and name != "HOROACC_SECRET"
        }
        self._lost[number] = lost
        message = {"kind": "start", "host": host, "number": number, "environ": given}
        if host not in self._pods or not tell(self._pods[host][0], message):
            raise OSError(0, "the pod is gone")

    def stop(self, host: str) -> None:
        """Ends the agent of a pod."""
        if host in self._pods:
            tell(self._pods[host][0], {"kind": "stop"})

    def end(self) -> None:
        """Tells all pods that the job is over, and hears no more."""
        for channel, _ in self._pods.values():
            tell(channel, {"kind": "over", "code": self._outcome()})
            drop(self._loop, channel)
        self._pods.clear()
        self._door.close()

    # --- discovery ----------------------------------------------------------------------------

    def start(self, found: Callable[[list[Host]], None]) -> None:
        """Gives the pods whenever one comes or goes."""
        self._found = found

    def close(self) -> None:
        """Does nothing: pods stay connected until they know how the job has ended."""

    def _greet(self, channel: Channel, hello: Message, more: list[Message]) -> None:
        name = str(hello.get("host"))
        self._known[name] = self._known.get(name, 0) + 1
        count = self._known[name]
        host = name if count == 1 else f"{name}#{count}"
        self._pods[host] = channel, int(hello.get("slots", 1))
        self._loop.watch(channel.fileno(), functools.partial(self._hear, host, channel))
        self._tell()

    def _hear(self, host: str, channel: Channel) -> None:
        try:
            for message in channel.receive():
                lost: Any = self._lost.pop(int(message["number"]), None)
                if lost is not None:
                    lost(str(message["why"]))
        except (ChannelError, ValueError, KeyError):
            drop(self._loop, channel)
            del self._pods[host]
            self._tell()

    def _tell(self) -> None:
        self._found([Host(name, slots) for name, (_, slots) in self._pods.items()])
