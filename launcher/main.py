"""The command `horoaccrun`."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder

from horoacc import dropin, settings
from horoacc.launcher import cores, explain, ops, slurm
from horoacc.launcher.arguments import Options, parse_arguments
from horoacc.launcher.check_build import report
from horoacc.launcher.children import Rank, ending
from horoacc.launcher.doctor import command as doctor
from horoacc.launcher.elastic.caller_agents import Caller
from horoacc.launcher.elastic.job import JobLoop, run_elastic
from horoacc.launcher.elastic.membership import Worker
from horoacc.launcher.hosts import HostsError, is_this_host, operator_hosts
from horoacc.launcher.kubernetes import host as pod_host
from horoacc.launcher.kubernetes import manifest
from horoacc.launcher.kubernetes.pods import PodError, pod_of, renewal
from horoacc.launcher.local import start_ranks
from horoacc.launcher.look import report as look_report
from horoacc.launcher.look import top
from horoacc.launcher.master import Master
from horoacc.launcher.mpirun import Mpirun, MpirunError, find_mpirun, start_mpirun
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import adopt_orphans
from horoacc.launcher.shim import SECRET_FILE, place_variables
from horoacc.launcher.sinks import ensure_open
from horoacc.launcher.supervise import Supervisor
from horoacc.mpi_plugins import plugin

# glibc gives large blocks back to the kernel at once, so that every training step faults its
# activations' pages in again. docs/benchmarks.md has the cost. 32 MiB is glibc's maximum for the
# first.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
# Of an outer job: a rank of this one must not read them.
POSITION_VARIABLES = {
    *place_variables(0, 1, 0, 1),
    "HOROACC_RENDEZVOUS",
    "HOROACC_RENDEZVOUS_FD",
    "HOROACC_SECRET",
    SECRET_FILE,
    "HOROACC_MASTER",
    "HOROACC_COORDINATOR",
    "HOROACC_WORKER",
    "HOROACC_ELASTIC",
    "HOROACC_PODS",
}


class LaunchError(RuntimeError):
    """The job cannot be started; the text says why."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs horoaccrun.

    Args:
        arguments: The command line without the program's name; None: this process's.

    Returns:
        The exit code: that of the first rank that failed (128 + n for signal n), 128 + n if this
        program was ended by signal n, 2 for a wrong command line, 127 if there is no such command.
    """
    ensure_open()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["explain"]:
        return explain.main(given[1:])
    if given[:1] == ["top"]:
        return top.main(given[1:])
    if given[:1] == ["report"]:
        return look_report.main(given[1:])
    if given[:1] == ["doctor"]:
        return doctor.main(given[1:], rank_environ, POSITION_VARIABLES)
    if given[:1] == ["k8s"]:
        return manifest.main(given[1:])
    try:
        allocation = slurm.allocation(os.environ)
        hosts = allocation.hosts if allocation else operator_hosts(os.environ)
    except HostsError as error:
        print(f"horoaccrun: {error}", file=sys.stderr)
        return 2
    if given[:1] == ["replay"] and "--simulate" in given:
        return subprocess.run([sys.executable, "-m", "horoacc.replay", *given[1:]]).returncode
    line = _program(given) if given[:1] in (["tune"], ["replay"]) else given
    options = parse_arguments(line, allocated=hosts)
    if options.check_build:
        text, usable = report(options.text("mpirun"), os.environ, options.on("verbose"))
        print(text)
        return 0 if usable else 1
    printer = Printer(os.environ, options.on("prefix_timestamp"))
    with contextlib.closing(printer):
        return _run(options, printer)


def _run(options: Options, printer: Printer) -> int:
    """Runs a job to its end. Returns the exit code."""
    for notice in options.notices:
        printer.say(notice)
    try:
        pod = pod_of(os.environ)
        if options.elastic and pod is not None and pod.index > 0:
            return pod_host.run(pod, options)
        if options.elastic:
            return _conclude_elastic(*run_elastic_job(options, printer), printer)
        return _conclude(*start_and_wait(options, printer), printer)
    except LaunchError as error:
        printer.say(str(error))
        return error.code
    except PodError as error:
        printer.say(str(error))
        return 1
    except KeyboardInterrupt:  # before a rank was started; after that the supervisor reads signals
        return 128 + signal.SIGINT


def _program(given: list[str]) -> list[str]:
    """`horoaccrun tune FLAGS [-- OPTIONS]`, or `replay RECORD …`: the command line of that job."""
    name, *arguments = given
    record, arguments = (arguments[:1], arguments[1:]) if name == "replay" else ([], arguments)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    words = [sys.executable, "-m", f"horoacc.{name}", *record]
    return [*arguments[:at], *words, *arguments[at + 1 :]]


def start_and_wait(options: Options, printer: Printer) -> tuple[Supervisor, Mpirun | None]:
    """Starts a job and waits for its end.

    Returns:
        The job's supervisor, and the mpirun that started it, if one did.

    Raises:
        LaunchError: It cannot be started.
    """
    pod = pod_of(os.environ)
    share = pod.share(options.size) if pod else None
    if share:
        if options.text("control") == "mpi" or options.given.get("tcp") is False:
            raise LaunchError("ranks of pods cannot use MPI: leave --mpi out")
        options = dataclasses.replace(options, size=share.count)
    environ = _prepare(options, printer)
    mpirun = None if share else _choose(options, printer, environ)
    try:
        master = Master(options, os.environ)
    except OSError as error:
        raise LaunchError(f"no port for rank 0: {error.strerror}") from None
    environ |= master.variables
    adopt_orphans()
    supervisor = Supervisor(
        printer, options.size, options.seconds("grace_seconds"), options.text("output_filename")
    )
    if pod:
        supervisor.timers.append(renewal())
    with contextlib.closing(master):
        try:
            if mpirun:
                start_mpirun(supervisor, mpirun, options, environ)
            else:
                if options.on("verbose"):
                    printer.say(
                        f"{options.size} ranks, without mpirun: {shlex.join(options.command)}"
                    )
                start_ranks(supervisor, options.command, environ, options.size, share)
        except MpirunError as error:
            supervisor.abandon()
            raise LaunchError(str(error)) from None
        except OSError as error:
            supervisor.abandon()
            raise LaunchError(f"cannot start '{options.command[0]}': {error.strerror}") from None
        supervisor.run()
    return supervisor, mpirun


def _prepare(options: Options, printer: Printer) -> dict[str, str]:
    """Checks what every rank needs, and gives the variables that all ranks get. LaunchError."""
    environ = rank_environ(os.environ, options)
    _check_command(options, environ)
    _check_folder(options.text("output_filename"))
    if options.on("as_horovod") and (hidden := _installed_horovod()):
        printer.say(f"--as-horovod: the ranks import HoroACC as horovod, not the one at {hidden}")
    if warning := ops.prepare(options.command, environ):
        printer.say(warning)
    return environ


def run_elastic_job(
    options: Options, printer: Printer, caller: Caller | None = None
) -> tuple[JobLoop, Worker | None]:
    """Runs an elastic job, with a caller's agents if there is one. LaunchError: it cannot start."""
    environ = _prepare(options, printer)
    for name in ("HOROACC_MIN_NP", "HOROACC_HOST_DISCOVERY_SCRIPT"):
        environ.pop(name, None)  # a job that a rank starts is one of its own
    if options.text("control") == "mpi" or options.given.get("tcp") is False:
        raise LaunchError("an elastic job cannot use MPI, whose ranks are fixed: leave --mpi out")
    mpirun = _srun(options, environ)
    if not mpirun and (options.others() or options.text("host_discovery_script")):
        with contextlib.suppress(MpirunError):
            mpirun = find_mpirun(options.text("mpirun"), environ)
    if options.others() and mpirun is None:
        raise LaunchError(f"no mpirun was found, and {', '.join(options.others())} is another host")
    return run_elastic(options, printer, environ, mpirun, caller, pod_of(os.environ))


def rank_environ(environ: Mapping[str, str], options: Options) -> dict[str, str]:
    """The variables that all ranks get: this process's, changed as the job needs it.

    They are without an outer job's; with every setting that was given, under its HOROACC name;
    with a number of threads that lets the ranks share the cores; with a C library that keeps freed
    memory; and, if asked for, with HoroACC under Horovod's name.
    """
    result = {name: text for name, text in environ.items() if name not in POSITION_VARIABLES}
    for setting in settings.TABLE:
        if setting.key in options.given:
            result[setting.env] = settings.as_text(options.given[setting.key])
    if options.hosts or not options.elastic:  # else each host's agent knows its cores and slots
        result.setdefault("OMP_NUM_THREADS", str(_threads_of_a_rank(environ, options)))
    for name, value in KEEP_MEMORY.items():
        result.setdefault(name, value)
    if options.on("as_horovod"):
        dropin.for_children(result)
    return result


def _threads_of_a_rank(environ: Mapping[str, str], options: Options) -> int:
    """The cores of a rank. Hosts that are all others are taken for hosts like this one."""
    local = sum(host.slots for host in options.hosts if is_this_host(host.name))
    most = max((host.slots for host in options.hosts), default=options.size)
    # Slurm gives each task so many, and the program that asks for it may be on a login node.
    if options.hosts and not local and (given := environ.get("SLURM_CPUS_PER_TASK", "")).isdigit():
        return max(1, int(given))
    return max(1, cores.usable() // min(options.size, local or most))


def _check_command(options: Options, environ: Mapping[str, str]) -> None:
    """Raises once the error that every rank would meet."""
    program = options.command[0]
    if not options.others() and shutil.which(program, path=environ.get("PATH")) is None:
        there = os.path.exists(program)
        why = "it is not executable" if there else "there is no such program"
        raise LaunchError(f"cannot start '{program}': {why}", 126 if there else 127)


def _installed_horovod() -> str:
    """Where a real Horovod is installed for this Python, or ""."""
    found = PathFinder.find_spec("horovod")
    return str(found.origin) if found is not None and found.origin else ""


def _check_folder(folder: str) -> None:
    """Fails before anything starts if the ranks' output cannot be kept."""
    if not folder:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "nothing can be written there")
    except OSError as error:
        raise LaunchError(f"--output-filename {folder}: {error.strerror}") from None


def _choose(options: Options, printer: Printer, environ: Mapping[str, str]) -> Mpirun | None:
    """The mpirun to start the ranks with, or None to start them here."""
    if srun := _srun(options, environ):
        return srun
    others = options.others()
    reason = ""
    mpirun = None
    # mpirun also starts ranks without MPI on other hosts: it starts any program.
    if others or not options.on("tcp"):
        try:
            mpirun = find_mpirun(options.text("mpirun"), environ)
        except MpirunError as error:
            if options.text("mpirun"):
                raise LaunchError(str(error)) from None
            reason = str(error)
        if mpirun is None:
            reason = reason or "no mpirun was found"
        elif not plugin(mpirun.flavour).is_file() and not others:
            reason = f"{mpirun.path} belongs to {mpirun.flavour}, whose plug-in was not built"
            mpirun = None
        if mpirun is None and options.values.get("tcp") is False and "tcp" in options.given:
            raise LaunchError(f"--mpi was asked for, but {reason}")
    if mpirun is None and others:
        raise LaunchError(
            f"{reason}, and {', '.join(others)} is another host: "
            "start the job there with mpirun or srun"
        )
    if mpirun is None and options.text("control") == "mpi" and options.size > 1:
        why = reason or "--tcp starts the ranks without MPI"
        raise LaunchError(f"--control mpi needs ranks that an mpirun started, but {why}")
    if reason:
        printer.say(f"{reason}: starting {options.size} ranks on this host over TCP")
    return mpirun


def _srun(options: Options, environ: Mapping[str, str]) -> Mpirun | None:
    """The srun of the allocation around this process, if it is to start ranks: unless MPI is to."""
    mpi = options.text("mpirun") or options.given.get("tcp") is False
    elsewhere = options.others() or options.text("host_discovery_script")
    if mpi or not elsewhere or options.text("control") == "mpi":
        return None
    try:
        allocation = slurm.allocation(environ)
        if allocation is None:
            return None
        allocation.check(options.others())
        path, version = slurm.find_srun(environ)
    except (slurm.SlurmError, HostsError) as error:
        raise LaunchError(str(error)) from None
    return Mpirun(path, "slurm", version)


def _conclude(supervisor: Supervisor, mpirun: Mpirun | None, printer: Printer) -> int:
    """Prints how the job ended and gives the exit code."""
    failed = supervisor.first_failed
    code = exit_code(supervisor)
    if failed is not None and supervisor.interrupted is None:
        if _failure_elsewhere(supervisor, failed):
            printer.say(_elsewhere(supervisor))
            return code
        tail = failed.streams["stderr"].tail
        printer.say(f"rank {failed.number} {how_it_ended(failed.status or 0, tail, False)}")
        for line in failed.streams["stderr"].tail:
            printer.line(failed.number, "stderr", line)
    elif mpirun is not None and supervisor.interrupted is None and code:
        told = f"{mpirun.path} ended with code {code}"
        printer.say(_elsewhere(supervisor) if supervisor.failed_elsewhere else told)
    return code


def _elsewhere(supervisor: Supervisor) -> str:
    """Says how a rank on another host failed."""
    if (told := supervisor.failed_elsewhere) is not None:
        return f"rank {told[0]} on {told[1]} {ending(told[2])}"
    return f"a rank on another host failed: mpirun ended with code {_mpirun_code(supervisor)}"


def _conclude_elastic(loop: JobLoop, failed: Worker | None, printer: Printer) -> int:
    """Prints how an elastic job ended and gives the exit code."""
    if loop.interrupted is None:
        if failed is not None:
            place = f"rank {failed.seat.rank}" if failed.seat else "a rank that was starting"
            tail = loop.coordinator.agents.tail(failed.number)
            how = how_it_ended(failed.status or 0, tail, False)
            printer.say(f"the last failure: {place} on {failed.host} {how}")
            for line in tail:
                printer.line(failed.seat.rank if failed.seat else -1, "stderr", line)
        if loop.coordinator.error:
            printer.say(f"the job has ended: {loop.coordinator.error}")
    return elastic_code(loop, failed)


def elastic_code(loop: JobLoop, failed: Worker | None) -> int:
    """The exit code of an elastic job."""
    if loop.interrupted is not None:
        return 128 + loop.interrupted
    if failed is not None:
        return _code(failed.status or 1)
    return 1 if loop.coordinator.error else 0


def exit_code(supervisor: Supervisor) -> int:
    """The exit code: of a signal to this program, else of the first failed rank, else of mpirun."""
    if supervisor.interrupted is not None:
        return 128 + supervisor.interrupted
    if (failed := supervisor.first_failed) is not None:
        return _failure_elsewhere(supervisor, failed) or _code(failed.status or 0)
    return _mpirun_code(supervisor)


def _mpirun_code(supervisor: Supervisor) -> int:
    """The code of mpirun or srun; of the latter, whose code is the highest, the first failure's."""
    if supervisor.failed_elsewhere is not None:
        return _code(supervisor.failed_elsewhere[2])
    return _code(supervisor.mpirun.status or 0) if supervisor.mpirun is not None else 0


def _failure_elsewhere(supervisor: Supervisor, failed: Rank) -> int:
    """The exit code of an mpirun that ended this rank after one on another host failed; else 0."""
    mpirun = supervisor.mpirun
    watched = len(supervisor.ranks) == supervisor.size
    if mpirun is None or watched:
        return 0
    # srun tells of a rank's end later than this host's ranks notice it, and end by an error.
    noticed = any(b"PeerLost" in line for line in failed.streams["stderr"].tail)
    if failed.status != -signal.SIGTERM and not (noticed and supervisor.failed_elsewhere):
        return 0
    return _mpirun_code(supervisor)


def how_it_ended(status: int, tail: Sequence[bytes], with_lines: bool = True) -> str:
    """Says how a rank failed, without its number.

    Args:
        status: Its exit code, negative for a signal.
        tail: Its last lines on stderr.
        with_lines: Whether to add them.
    """
    said = "its last lines on stderr:" if tail else "it had printed nothing on stderr"
    lines = [line.decode(errors="replace") for line in tail] if with_lines else []
    return "\n".join([f"{ending(status)}; {said}", *lines])


def _code(status: int) -> int:
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
