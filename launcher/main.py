"""The command `horoaccrun`."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from horoacc.launcher import ops
from horoacc.launcher.arguments import Options, parse_arguments
from horoacc.launcher.check_build import report
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.local import start_ranks
from horoacc.launcher.mpirun import Mpirun, MpirunError, MpirunStarter, find_mpirun
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import adopt_orphans
from horoacc.launcher.rank import Rank
from horoacc.launcher.supervise import Supervisor

from horoacc import settings
from horoacc.mpi_plugins import plugin

# Of an outer job: a rank of this one must not read them.
# glibc gives large blocks back to the kernel at once, so that every training step faults its
# activations' pages in again. docs/benchmarks.md has what that costs. 32 MiB is the most that glibc
# takes for the first.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
_POSITION = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_POSITION_VARIABLES = {
    f"{prefix}_{name}" for prefix in ("HOROACC", "HOROVOD") for name in _POSITION
}
_POSITION_VARIABLES |= {"HOROACC_RENDEZVOUS", "HOROACC_RENDEZVOUS_FD", "HOROACC_SECRET"}


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
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    if options.check_build:
        text, usable = report(options.text("mpirun"), os.environ)
        print(text)
        return 0 if usable else 1
    printer = Printer(os.environ, options.on("prefix_timestamp"))
    for notice in options.notices:
        printer.say(notice)
    try:
        return _run(options, printer)
    except LaunchError as error:
        printer.say(str(error))
        return error.code
    except KeyboardInterrupt:  # before there is a rank; later signals are read, not raised
        return 128 + signal.SIGINT


def _run(options: Options, printer: Printer) -> int:
    environ = rank_environ(os.environ, options)
    cores = len(os.sched_getaffinity(0))
    _check_command(options, environ)
    _check_folder(options.text("output_filename"))
    mpirun = _choose(options, printer, environ)
    if warning := ops.prepare(options.command, environ):
        printer.say(warning)
    adopt_orphans()
    supervisor = Supervisor(
        printer, options.size, options.seconds("grace_seconds"), options.text("output_filename")
    )
    try:
        if mpirun:
            MpirunStarter(supervisor, mpirun, options, cores).start(environ)
        else:
            if options.on("verbose"):
                printer.say(f"{options.size} ranks, without mpirun: {shlex.join(options.command)}")
            start_ranks(supervisor, options.command, environ, options.size)
    except OSError as error:
        supervisor.abandon()
        raise LaunchError(f"cannot start '{options.command[0]}': {error.strerror}") from None
    supervisor.run()
    return _conclude(supervisor, printer, mpirun)


def rank_environ(environ: Mapping[str, str], options: Options) -> dict[str, str]:
    """The variables that all ranks get.

    Args:
        environ: This process's.
        options: What was asked for.

    Returns:
        Them, without an outer job's; with every setting that was given, under its HOROACC name;
        with a number of threads that lets the ranks share the cores; and with a C library that
        keeps freed memory.
    """
    result = {name: text for name, text in environ.items() if name not in _POSITION_VARIABLES}
    for setting in settings.TABLE:
        if setting.key in options.given:
            result[setting.env] = settings.as_text(options.given[setting.key])
    local = sum(host.slots for host in options.hosts if is_this_host(host.name))
    ranks = min(options.size, local) if local else options.size
    result.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    for name, value in _KEEP_MEMORY.items():
        result.setdefault(name, value)
    return result


def _check_command(options: Options, environ: Mapping[str, str]) -> None:
    """Says at once, and once, what every rank would say."""
    program = options.command[0]
    if any(not is_this_host(host.name) for host in options.hosts):
        return
    if shutil.which(program, path=environ.get("PATH")) is None:
        there = os.path.exists(program)
        why = "it is not executable" if there else "there is no such program"
        raise LaunchError(f"cannot start '{program}': {why}", 126 if there else 127)


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
    strangers = [host.name for host in options.hosts if not is_this_host(host.name)]
    reason = ""
    mpirun = None
    if not options.on("tcp"):
        try:
            mpirun = find_mpirun(options.text("mpirun"), environ)
        except MpirunError as error:
            if options.text("mpirun"):
                raise LaunchError(str(error)) from None
            reason = str(error)
        if mpirun is None:
            reason = reason or "no mpirun was found"
        elif not plugin(mpirun.flavour).is_file() and not strangers:
            reason = f"{mpirun.path} belongs to {mpirun.flavour}, whose plug-in was not built"
            mpirun = None
        if mpirun is None and options.values.get("tcp") is False and "tcp" in options.given:
            raise LaunchError(f"--mpi was asked for, but {reason}")
    if mpirun is None and strangers:
        why = reason or "--tcp starts ranks on this host only"
        raise LaunchError(
            f"{why}, and {', '.join(strangers)} is another host: "
            "start the job there with mpirun or srun"
        )
    if mpirun is None and options.text("control") == "mpi" and options.size > 1:
        why = reason or "--tcp starts the ranks without MPI"
        raise LaunchError(f"--control mpi needs ranks that an mpirun started, but {why}")
    if reason:
        printer.say(f"{reason}: starting {options.size} ranks on this host over TCP")
    return mpirun


def _conclude(supervisor: Supervisor, printer: Printer, mpirun: Mpirun | None) -> int:
    """Says how the job ended and gives the exit code."""
    with supervisor.guard_output():
        failed = supervisor.first_failed
        if failed is not None and supervisor.interrupted is None:
            _tell(failed, printer)
            return _code(failed.status or 0)
    if supervisor.interrupted is not None:
        return 128 + supervisor.interrupted
    if supervisor.engine is not None and supervisor.engine.status:
        code = _code(supervisor.engine.status)
        assert mpirun
        printer.say(f"{mpirun.path} ended with code {code}")
        return code
    return 0


def _tell(rank: Rank, printer: Printer) -> None:
    tail = rank.streams["stderr"].tail
    said = "its last lines on stderr:" if tail else "it had printed nothing on stderr"
    printer.say(f"rank {rank.number} {_how(rank.status or 0)}; {said}")
    for line in tail:
        printer.line(rank.number, "stderr", line)


def _how(status: int) -> str:
    if status > 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", which the kernel sends when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _code(status: int) -> int:
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
