"""`horoaccrun doctor`: finds what usually keeps a job from running, on every host of it."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from horoacc.launcher import shim
from horoacc.launcher.arguments import Options, parse_arguments
from horoacc.launcher.doctor import job, limits, network, software
from horoacc.launcher.doctor.findings import Finding, as_json, as_text, failed
from horoacc.launcher.doctor.hosts import (
    Seen,
    on_all,
    read_clock,
    start_probe,
    which_are_here,
)
from horoacc.launcher.doctor.probe import MARK
from horoacc.launcher.doctor.reach import RemoteProgram, Unreached, agent_name
from horoacc.launcher.hosts import Host
from horoacc.launcher.mpirun import Mpirun, MpirunError, exported, find_mpirun

_RANK_PROBE = Path(__file__).resolve().parent / "rank_probe.py"
_SECONDS = 20.0
# Of which each part may take so many times as long: importing from a busy file server, and a job.
_PATIENCE = 3
# With the last two it was tried: no job starts.
_OTHER_SHELLS = ("csh", "tcsh", "fish")
_DESCRIPTION = """\
Looks for what usually keeps a job from running: names, ports, limits, shared memory, control
groups, MPI, GPUs, versions, variables, clocks and networks, on this host or all hosts of -H, and
then runs a small job there. Takes the flags that the job takes, and its command, if there is one.
Each finding is a line, and a second one says what to do. The exit status is 1 if there is an error.
docs/doctor.md explains each check."""


def main(
    arguments: Sequence[str],
    rank_environ: Callable[[Mapping[str, str], Options], dict[str, str]],
    position: set[str],
) -> int:
    """Runs the command line after `doctor`.

    Args:
        arguments: Flags of horoaccrun and of this command, and the job's own command or nothing.
        rank_environ: The variables that horoaccrun gives to the ranks.
        position: The names of those that tell a rank its place.

    Returns:
        0, 1 if an error was found, 130 if it was interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="horoaccrun doctor",
        usage="horoaccrun doctor [-np N] [-H hosts | --hostfile F] [--json] [--seconds S]\n"
        "                         [more flags of horoaccrun] [command of the job]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, metavar="S",
        help=f"how long each question to a host may take (default: {_SECONDS:g}); importing "
        f"packages and the small job may take {_PATIENCE} times as long",
    )  # fmt: skip
    own, rest = parser.parse_known_args(arguments)
    if not own.seconds > 0:
        parser.error(f"--seconds must be above 0, not {own.seconds:g}")
    options = parse_arguments(rest, complete=False)
    # Without hosts, for whose names it would wait: they change only the number of OpenMP's threads.
    environ = rank_environ(os.environ, replace(options, hosts=[]))
    try:
        findings, names = examine(options, environ, position, own.seconds)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print((as_json if own.json else as_text)(findings, names))
    return int(failed(findings))


def examine(
    options: Options, environ: Mapping[str, str], position: set[str], seconds: float
) -> tuple[list[Finding], list[str]]:
    """Examines the hosts of a job.

    Args:
        options: The job.
        environ: The variables that its ranks get.
        position: The names of variables that tell a rank its place.
        seconds: How long a host may take for an answer.

    Returns:
        The findings, and the hosts' names.
    """
    hosts = _hosts(options, seconds / 2)
    findings: list[Finding] = []
    try:
        mpirun = find_mpirun(options.text("mpirun"), os.environ)
    except MpirunError as error:
        mpirun = None
        findings.append(Finding("MPI", "error", socket.gethostname(), str(error), _MPIRUN))
    agent, mpi_args = options.text("launch_agent"), options.text("mpi_args")
    order = {"token": secrets.token_hex(32), "life": 20 * seconds}
    probes: dict[str, RemoteProgram] = {}
    try:
        for host in hosts:  # by this thread, which outlives them
            try:
                probes[host.name] = start_probe(host, agent, mpi_args, order, seconds / 2)
            except Unreached as error:
                host.unreached = error
        _ask(hosts, probes, options, environ, mpirun, seconds)
    finally:
        for probe in probes.values():
            probe.close()
    findings += reached(hosts, agent_name(agent), mpirun)
    chosen = _interfaces(options)
    findings += network.judge(hosts, chosen)
    for host in hosts:
        if host.unreached is None:
            findings += limits.judge(host, options.size, options.values)
    findings += software.judge(hosts, mpirun, position)
    findings.append(job.launcher(hosts, options.on("tcp"), mpirun))
    if failed(findings):
        told = "not tried, because there are errors already"
        advice = "mend them, then run the doctor again"
        findings.append(Finding("job", "warning", hosts[0].name, told, advice))
    else:
        here = not options.hosts
        findings.append(job.run(hosts, here, environ, _PATIENCE * seconds))
    return findings, [host.name for host in hosts]


_MPIRUN = "name a working one in --mpirun, pip install 'horoacc[mpi]', or use --tcp on one host"


def _hosts(options: Options, seconds: float) -> list[Seen]:
    """The job's hosts with their numbers of ranks, as mpirun fills them: one after another."""
    given = options.hosts or [Host(socket.gethostname(), options.size)]
    own = which_are_here([host.name for host in options.hosts], seconds)
    left = options.size
    hosts = []
    for host in given:
        ranks = min(host.slots, left)
        left -= ranks
        hosts.append(Seen(host.name, ranks, not options.hosts or host.name in own))
    return hosts


def _interfaces(options: Options) -> list[str]:
    words = options.text("network_interfaces").split(",")
    return [word.strip() for word in words if word.strip()]


def _ask(
    hosts: Sequence[Seen],
    probes: Mapping[str, RemoteProgram],
    options: Options,
    environ: Mapping[str, str],
    mpirun: Mpirun | None,
    seconds: float,
) -> None:
    """Asks all hosts at once, one question after another; none waits longer than it may."""
    paths = [os.getcwd(), shim.__file__]
    paths += [os.path.abspath(part) for part in options.command[:2] if os.path.isfile(part)]

    def learn(host: Seen) -> None:
        probe = probes[host.name]
        host.facts = probe.ask("facts", seconds, python=sys.executable, paths=paths)
        host.ports = probe.ask("ports", seconds)
        host.clock = read_clock(probe, seconds)

    def look_around(host: Seen) -> None:
        targets = [
            {
                "host": other.name,
                "ports": other.ports if other is not host else [],
                "also": network.addresses(other, chosen) if chosen else [],
                "fallback": network.addresses(other),
            }
            for other in hosts
        ]
        if host.facts["hostname"] not in {target["host"] for target in targets}:
            targets.append({"host": host.facts["hostname"], "ports": []})
        patience = (len(host.ports) + 3) * seconds
        host.met = probes[host.name].ask("meet", patience, targets=targets, seconds=seconds / 2)

    def try_python(host: Seen) -> None:
        if not host.facts["python"]:
            return
        passed = {name: environ[name] for name in exported(environ)} if not host.here else {}
        packages = ",".join([*software.PACKAGES, "mpi4py"])
        which = [mpirun.path, mpirun.flavour] if mpirun else ["", ""]
        try:
            host.rank = probes[host.name].ask(
                "program", _PATIENCE * seconds + 5, seconds=_PATIENCE * seconds,
                python=sys.executable, program=_RANK_PROBE.read_text(), environ=passed,
                folder=os.getcwd(), arguments=[MARK, packages, *which],
            )  # fmt: skip
        except Unreached as error:
            host.rank = {"end": str(error)}

    on_all(hosts, learn)
    reached = [host for host in hosts if host.unreached is None]
    chosen = _interfaces(options)
    python = threading.Thread(target=on_all, args=(reached, try_python))
    python.start()
    on_all(reached, look_around)
    python.join()


def reached(hosts: Sequence[Seen], agent: str, mpirun: Mpirun | None) -> list[Finding]:
    """Whether each host answered, and how it was reached."""
    findings = []
    for host in hosts:
        if host.unreached is not None:
            told = f"{'' if host.here else f'by {agent}: '}{host.unreached}"
            findings.append(Finding("reach", "error", host.name, told, host.unreached.advice))
        elif not host.here and agent == "ssh" and mpirun and _is_strange(host, mpirun):
            told = f"by ssh; the login shell there is {host.facts['shell']}"
            advice = "Open MPI starts its daemons in the words of sh: `chsh -s /bin/bash` there, "
            advice += "or a --launch-agent that has sh read them"
            findings.append(Finding("reach", "warning", host.name, told, advice))
        else:
            way = "this host" if host.here else f"by {agent}, without a password"
            findings.append(Finding("reach", "ok", host.name, way))
    return findings


def _is_strange(host: Seen, mpirun: Mpirun) -> bool:
    """Whether the login shell does not understand how this mpirun starts its daemons over ssh."""
    return mpirun.flavour == "openmpi" and Path(host.facts["shell"]).name in _OTHER_SHELLS
