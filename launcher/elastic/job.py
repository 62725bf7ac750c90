"""`horoaccrun` of an elastic job: the loop, the coordinator in it, and how the job ended."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping

from horoacc.launcher.addresses import ELSEWHERE, address_towards, is_loopback
from horoacc.launcher.arguments import Options
from horoacc.launcher.elastic.caller_agents import Caller, CallerAgents
from horoacc.launcher.elastic.coordinator import Coordinator
from horoacc.launcher.elastic.deadlines import Deadlines
from horoacc.launcher.elastic.discovery import FixedHosts, ScriptDiscovery
from horoacc.launcher.elastic.history import History
from horoacc.launcher.elastic.membership import INFINITE, Limits, Membership, Worker
from horoacc.launcher.elastic.starters import MpirunAgents
from horoacc.launcher.hosts import Host
from horoacc.launcher.kubernetes.hosts import PodHosts
from horoacc.launcher.kubernetes.pods import Pod, renewal
from horoacc.launcher.look.look_server import serve_looks
from horoacc.launcher.mpirun import Mpirun
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import adopt_orphans
from horoacc.launcher.supervise import Supervisor
from horoacc.monitor.door import LAUNCHER, short

# Not less where the user gave none: one rank may evaluate or write a checkpoint for minutes.
_STALL_SECONDS = 600.0
_STALL_VARIABLES = ("HOROACC_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")


class JobLoop(Supervisor):
    """The loop of an elastic job, whose workers belong to agents."""

    coordinator: Coordinator

    def abandon(self) -> None:
        """Ends the agents, kills all processes that are left of the job, and closes everything."""
        self.coordinator.close()
        super().abandon()

    def _finished(self) -> bool:
        return self.coordinator.finished

    def stop(self, number: int) -> None:
        """Asks every worker to end; those that have not after the time of grace are killed."""
        if self.stopping is None:
            self._kill_at = min(self._kill_at, time.monotonic() + self._grace)
        self.stopping = number
        self.coordinator.signal_all(number)

    def _kill(self, now: float) -> None:
        self._kill_at = float("inf") if self._killed else now + self._grace
        if self._killed:
            # Their agents do not answer: they end with the agents, which `abandon` kills.
            self.coordinator.agents.give_up()
        self._killed = True
        self.coordinator.signal_all(signal.SIGKILL)


def limits_of(options: Options) -> Limits:
    """What the flags say about the size of a job; a least size that was not given is -np."""
    least, most = int(options.values["min_np"]), int(options.values["max_np"])
    cooldown = [float(word) for word in options.text("blacklist_cooldown_range").split()]
    return Limits(
        least=least or options.size,
        most=most or INFINITE,
        resets=int(options.values["reset_limit"]),
        failures_per_host=int(options.values["failures_per_host"]),
        spares=int(options.values["warm_spares"]),
        cooldown=(cooldown[0], cooldown[1]) if cooldown else None,
    )


def _stall_limit(options: Options, environ: Mapping[str, str]) -> float:
    """How long ranks wait for one whose engine lives, but which does not make their call.

    Such a rank hangs in Python. Its heartbeats go on, so nothing else would have the job expel it.

    Args:
        options: The job's.
        environ: That of its ranks, with what the user has set.

    Returns:
        Seconds; 0: for ever, which the user has asked for.
    """
    silence = options.seconds("heartbeat_timeout_seconds")
    if silence == 0 or any(environ.get(name) for name in _STALL_VARIABLES):
        return options.seconds("stall_shutdown_seconds")
    return max(_STALL_SECONDS, silence, options.seconds("stall_warning_seconds"))


def run_elastic(
    options: Options,
    printer: Printer,
    environ: Mapping[str, str],
    mpirun: Mpirun | None,
    caller: Caller | None = None,
    pod: Pod | None = None,
) -> tuple[JobLoop, Worker | None]:
    """Runs an elastic job to its end.

    Args:
        options: The job's.
        printer: Where messages and the ranks' lines go.
        environ: The variables that all ranks get.
        mpirun: Starts agents on other hosts, if there is one.
        caller: Finds the hosts and starts all agents, if it is given.
        pod: The first of an Indexed Job, if this is it: pods are the hosts.

    Raises:
        PodError: The pod has no address, or not the port that the manifest names.

    Returns:
        Its loop, and the worker because of which it failed, or None.
    """
    adopt_orphans()
    loop = JobLoop(
        printer, options.size, options.seconds("grace_seconds"), options.text("output_filename")
    )
    limits = limits_of(options)
    given = pod or caller
    secret = (given.secret if given else "") or secrets.token_hex(32)
    membership = Membership(limits)
    stall = _stall_limit(options, environ)
    # A rank for which the others wait may take as long as the shorter one that is not 0.
    hangs = (options.seconds("heartbeat_timeout_seconds"), stall)
    times = Deadlines(
        shortage=options.seconds("elastic_timeout"),
        start=max(map(options.seconds, ("elastic_timeout", "start_timeout_seconds"))),
        hang=min(filter(None, hangs), default=0.0),
        leave=options.seconds("grace_seconds") + 30.0,
        agent=options.seconds("start_timeout_seconds"),
        silence=options.seconds("host_timeout_seconds"),
    )

    def variables() -> Mapping[str, str]:
        return {
            **environ,
            "HOROACC_COORDINATOR": loop.coordinator.door.address,
            "HOROACC_SECRET": secret,
            "HOROACC_ELASTIC": "1",
            _STALL_VARIABLES[0]: f"{stall:g}",
        }

    def outcome() -> int:
        over, job = membership.over, loop.coordinator
        return 0 if over and not (job.error or job.failed_late or loop.interrupted) else 1

    called: CallerAgents | PodHosts | None = None
    if caller:
        called = CallerAgents(loop, caller.link, variables)
    elif pod:
        called = PodHosts(loop, pod, times.silence, variables, outcome)
    loop.coordinator = Coordinator(
        loop, printer, membership, called or MpirunAgents(loop, options, mpirun, variables),
        options.command, secret, times, History(options.text("flight_dir")),
        lambda: loop.stop(signal.SIGTERM), options.on("verbose"),
    )  # fmt: skip
    loop.coordinator.door.open(*_own_address(options, caller, pod))
    name = short(loop.coordinator.door.address)
    if why := serve_looks(loop, name, LAUNCHER, environ, loop.coordinator.looks.ask):
        printer.say(why)
    script = options.text("host_discovery_script")
    slots = int(options.values["slots_per_host"])
    here = slots or int(options.size if limits.most == INFINITE else limits.most)
    discovery: FixedHosts | ScriptDiscovery | CallerAgents | PodHosts
    discovery = called or FixedHosts(options.hosts or [Host("localhost", here)])
    if script:
        discovery = ScriptDiscovery(loop, script, slots or 1)

    def found(hosts: list[Host]) -> None:
        if membership.set_hosts(hosts):
            loop.coordinator.look()

    with contextlib.closing(discovery):
        discovery.start(found)
        loop.timers += [loop.coordinator.on_time, *([renewal()] if pod else [])]
        loop.run()
    failed = loop.coordinator.failed
    counts = not membership.over or loop.coordinator.error or loop.coordinator.failed_late
    return loop, failed if counts else None


def _own_address(
    options: Options, caller: Caller | None, pod: Pod | None
) -> tuple[str, socket.AddressFamily]:
    """Where agents and workers reach the coordinator, and other hosts the ranks of this one."""
    if pod is not None:
        return pod.own_address()
    if caller is not None:
        return caller.address, socket.AF_INET6 if ":" in caller.address else socket.AF_INET
    others = options.others()
    if others:
        family, own = address_towards(others[0])
        return own, family
    if options.text("host_discovery_script"):
        # Hosts that the script finds later are reached that way: by the default route, or, without
        # one, from the address that this host's own name means.
        for elsewhere in (*ELSEWHERE, socket.gethostname()):
            with contextlib.suppress(OSError):
                family, own = address_towards(elsewhere)
                if not is_loopback(own):
                    return own, family
        print(
            "horoaccrun: this host has no default route, and its name means no address of a "
            "network: workers on other hosts cannot reach it",
            file=sys.stderr,
        )
    return "127.0.0.1", socket.AF_INET
