"""A pod of an elastic job, as a host: it calls the coordinator and runs the agent that it asks for.

Runs in each pod but the first as horoaccrun itself, and in the first beside the coordinator as
`python -m horoacc.launcher.kubernetes.host FLAGS…`, with horoaccrun's command line.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import time

from horoacc.launcher.arguments import Options, parse_arguments
from horoacc.launcher.children import MpirunProcess, ending, start_piped
from horoacc.launcher.elastic.channel import Channel, ChannelError, Message, dial
from horoacc.launcher.kubernetes.pods import Pod, pod_of, renewal
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import adopt_orphans, die_with_parent, signal_group
from horoacc.launcher.supervise import Supervisor

_AGENT = (sys.executable, "-m", "horoacc.launcher.elastic.agent")
_PAUSE = 0.1
_DIAL_SECONDS = 5.0


class HostLoop(Supervisor):
    """The loop of such a pod. It has one agent at a time, and no ranks."""

    def __init__(self, channel: Channel, grace: float) -> None:
        super().__init__(Printer(os.environ), 0, grace)
        self.code = 1
        self._channel = channel
        self._agent: MpirunProcess | None = None
        self._done = False
        self.watch(channel.fileno(), self._hear)

    def stop(self, number: int) -> None:
        """A signal to the pod: its ranks leave at their next check, and then it ends."""
        self.code = 128 + number
        if self._agent is None:
            self._done = True
        else:
            signal_group(self._agent.pid, signal.SIGTERM)

    def _finished(self) -> bool:
        return self._done

    def _hear(self) -> None:
        try:
            for message in self._channel.receive():
                self._take(message)
        except (ChannelError, ValueError, KeyError):
            self._done = True  # the coordinator is gone; the agent notices that, too

    def _take(self, message: Message) -> None:
        if message["kind"] == "over":
            self.code = int(message["code"]) if self.interrupted is None else self.code
            self._done = True
        elif message["kind"] == "stop" and self._agent is not None:
            signal_group(self._agent.pid, signal.SIGKILL)
        elif message["kind"] == "start":
            number = int(message["number"])
            command = [*_AGENT, str(number), str(message["host"])]
            environ = {**os.environ, **message["environ"]}
            for name in ("HOROACC_PODS", "HOROACC_RENDEZVOUS"):
                environ.pop(name, None)  # a rank is no pod: it gets its place with its seat
            pid, stdout, stderr = start_piped(
                command, environ, subprocess.DEVNULL, die_with_parent()
            )
            pipes = {"stdout": stdout, "stderr": stderr}
            self._agent = MpirunProcess(self, pid, pipes, self.printer.plain)
            self.watchdog.add(pid)
            self.on_child_end(pid, functools.partial(self._ended, self._agent, number))

    def _ended(self, agent: MpirunProcess, number: int, status: int) -> None:
        agent.ended(status)
        if self._agent is agent:
            self._agent = None
            self._done = self._done or self.interrupted is not None
            try:
                why = f"its agent {ending(status)}" if status else "its agent ended"
                self._channel.send({"kind": "lost", "number": number, "why": why})
            except ChannelError:
                self._done = True


def run(pod: Pod, options: Options) -> int:
    """Waits for the coordinator, and serves it.

    Returns:
        The pod's exit code: that of the job, 128 + n after signal n, 1 if the coordinator is gone.
    """
    seconds = max(options.seconds("elastic_timeout"), options.seconds("start_timeout_seconds"))
    end = time.monotonic() + seconds
    renew = renewal()
    # A pod by which the job has grown has as many as the first, and an index behind HOROACC_PODS.
    first = dataclasses.replace(pod, index=0)
    slots = int(options.values["slots_per_host"]) or first.share(options.size).count
    while True:
        renew(time.monotonic())
        try:
            silence = options.seconds("host_timeout_seconds")
            channel = dial(pod.rendezvous, pod.secret, _DIAL_SECONDS, silence)
            break
        except ChannelError as error:
            if time.monotonic() > end:
                print(
                    f"horoaccrun: for {seconds:g} s this pod cannot reach {error}", file=sys.stderr
                )
                return 1
        time.sleep(_PAUSE)
    channel.send({"kind": "host", "host": socket.gethostname(), "slots": slots})
    adopt_orphans()
    loop = HostLoop(channel, options.seconds("grace_seconds"))
    if pod.index > 0:
        loop.timers.append(renew)
    loop.run()
    return loop.code


def main() -> int:
    """Runs the host of the first pod."""
    pod = pod_of(os.environ)
    assert pod is not None
    return run(pod, parse_arguments(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
