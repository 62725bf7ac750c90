"""`horoacc.run`: calls a function on every rank of a job and returns the results.

Three kinds of processes: the caller; the job, a horoaccrun that writes an `outcome` (`run_as_job`);
and its ranks (`function_rank`). Function, results and exceptions travel as files of a folder that
only this user can enter (mode 0700): what is unpickled was written by this user's own processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import cloudpickle

from horoacc import dropin
from horoacc.errors import RankFailed
from horoacc.launcher.arguments import Options, parse_arguments
from horoacc.launcher.elastic.caller_agents import Caller
from horoacc.launcher.elastic.caller_discovery import discovery_script
from horoacc.launcher.main import (
    LaunchError,
    elastic_code,
    exit_code,
    how_it_ended,
    run_elastic_job,
    start_and_wait,
)
from horoacc.launcher.output import Printer
from horoacc.launcher.processes import die_with_parent

if TYPE_CHECKING:
    from horoacc.elastic.discovery import HostDiscovery

# Beyond the ranks' own time of grace, which the job observes by itself.
_STOP_SECONDS = 15.0
_RANK = "from horoacc.launcher.function_rank import main; main()"
_JOB = "from horoacc.launcher.function import run_as_job; run_as_job()"


class RankTraceback(Exception):
    """The cause of an exception that `run` raises again: where the rank raised it."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    host_discovery: HostDiscovery | None = None,
) -> list[Any]:
    """Calls a function on every rank of a new job on this host. It calls `init()` itself.

    Functions of a notebook or of the main script travel whole; those of other modules by name.

    Args:
        func: The function. cloudpickle must know how to pickle it, its arguments and its results.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: The number of ranks.
        min_num_proc: The fewest ranks to go on with; makes the job elastic (docs/elastic.md).
        max_num_proc: The most ranks of an elastic job.
        slots: The slots of hosts for which the discovery script prints none.
        reset_limit: How often the ranks of an elastic job may change.
        cooldown_range: The shortest and longest time, in seconds, for which an elastic job leaves
            a host out after a failure.
        hosts: "localhost:4": this host, with at least as many slots as ranks.
        hostfile: A file that says the same.
        host_discovery_script: Program that prints the hosts of an elastic job: names of this one.
        start_timeout: How long the ranks wait for each other in `init()`, in seconds.
        ssh_port: Has no effect, and prints a line that says so.
        ssh_identity_file: The same.
        disable_cache: The same.
        output_filename: A folder that gets each rank's output in files.
        verbose: Whether to print the command that starts the job.
        use_gloo: Starts the ranks without MPI.
        use_mpi: Insists on MPI.
        mpi_args: More arguments for mpirun.
        network_interface: The same as `network_interfaces`.
        network_interfaces: Network interfaces for data between hosts, with commas between them.
        executable: The Python of the ranks; None: this one.
        np: The older name of `num_proc`.
        min_np: The older name of `min_num_proc`.
        max_np: The older name of `max_num_proc`.
        env: More variables for the ranks.
        host_discovery: Finds the hosts of an elastic job, instead of a script: names of this one.
            A thread of this process asks it each second.

    Returns:
        What the function returned, by rank; of an elastic job by the ranks at its end.

    Raises:
        ValueError: Arguments contradict each other, or ask for a job that is not possible.
        RankFailed: A rank died, or raised an exception that cannot be pickled or unpickled;
            `culprit` is the rank.
        RuntimeError: The job cannot be started.
        Exception: The exception of the first rank that failed, with that rank's traceback as cause.
    """
    if host_discovery is not None and host_discovery_script is not None:
        raise ValueError("host_discovery and host_discovery_script cannot both be given")
    line = flags(
        {
            "--num-proc": num_proc if np is None or num_proc != 1 else np,
            "--min-num-proc": min_np if min_num_proc is None else min_num_proc,
            "--max-num-proc": max_np if max_num_proc is None else max_num_proc,
            "--slots-per-host": slots,
            "--reset-limit": reset_limit,
            "--blacklist-cooldown-range": cooldown_range,
            "--hosts": hosts,
            "--hostfile": hostfile,
            "--host-discovery-script": host_discovery_script,
            "--start-timeout": start_timeout,
            "--ssh-port": ssh_port,
            "--ssh-identity-file": ssh_identity_file,
            "--disable-cache": disable_cache,
            "--output-filename": output_filename,
            "--verbose": bool(verbose),
            "--gloo": use_gloo,
            "--mpi": use_mpi,
            "--mpi-args": mpi_args,
            "--network-interfaces": network_interface or network_interfaces,
            "--as-horovod": dropin.installed(),
        }
    )
    folder = Path(tempfile.mkdtemp(prefix="horoacc-run-"))
    try:
        with contextlib.ExitStack() as stack:
            if host_discovery is not None:
                script = stack.enter_context(discovery_script(host_discovery, folder))
                line += ["--host-discovery-script", script]
            check(line, {**os.environ, **(env or {})})
            call = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
            (folder / "function").write_bytes(call)
            code = run_job(folder, line, _rank_command(folder, executable), env)
        return collect(folder, code)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flags(given: Mapping[str, object]) -> list[str]:
    """Writes horoaccrun's flags: None and False leave one out, True is a flag without a value."""
    line: list[str] = []
    for flag, value in given.items():
        if value is None or value is False:
            continue
        line.append(flag)
        if isinstance(value, Sequence) and not isinstance(value, str):
            line += [str(one) for one in value]
        elif value is not True:
            line.append(str(value))
    return line


def check(line: list[str], environ: Mapping[str, str]) -> None:
    """Raises ValueError for flags that horoaccrun would refuse."""
    if "--gloo" in line and "--mpi" in line:
        raise ValueError("use_gloo and use_mpi cannot both be given")
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            options = parse_arguments([*line, "python"], environ)
    except SystemExit:
        raise ValueError(told.getvalue().strip().rpartition("error: ")[2]) from None
    if others := options.others():
        raise ValueError(
            f"run() starts ranks on this host only, but {', '.join(others)} is another: "
            "start a script there with horoaccrun, mpirun or srun"
        )


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _rank_command(folder: Path, executable: str | None) -> list[str]:
    # Another Python has modules of its own, and gets this one's path behind them.
    (folder / "path").write_text(json.dumps(_path()))
    own = executable in (None, sys.executable)
    rank = f"import sys; sys.path[:] = {_path()!r}; {_RANK}" if own else _RANK
    return [executable or sys.executable, "-c", rank, str(folder)]


def run_job(
    folder: Path,
    line: Sequence[str],
    rank: Sequence[str],
    env: Mapping[str, str] | None,
    passed: Sequence[int] = (),
    turn: Callable[[], object] | None = None,
) -> int:
    """Runs a job to its end; an exception here ends the job first.

    Args:
        folder: Gets its outcome.
        line: Flags of horoaccrun.
        rank: The command of a rank.
        env: More variables.
        passed: Descriptors that the job's process inherits.
        turn: Is called again and again meanwhile; it waits, a short time.

    Returns:
        Its exit code.
    """
    job = f"import sys; sys.path[:] = {_path()!r}; {_JOB}"
    command = [sys.executable, "-c", job, str(os.getpid()), str(folder), *line, "--", *rank]
    with _forwarded() as (stdout, stderr):
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # The job hears of Ctrl-C from here, so that it is told once.
            start_new_session=True,
            preexec_fn=die_with_parent(15),
            pass_fds=passed,
        )
        try:
            while turn is not None and process.poll() is None:
                turn()
            return process.wait()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
            process.wait()
            raise


def collect(folder: Path, code: int) -> list[Any]:
    """Gives the results by rank, or raises the first error."""
    outcome_file = folder / "outcome"
    if not outcome_file.exists():
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise RuntimeError(f"the job's own process {how}, and all ranks with it")
    outcome = json.loads(outcome_file.read_text())
    if outcome["refused"]:
        raise RuntimeError(outcome["refused"])
    failed, size = outcome["failed"], outcome["size"]
    # What ended one rank of an elastic job need not have ended the job.
    named = {rank: f"error.{rank}" for rank in range(size)} if outcome["fixed"] else {}
    if "worker" in outcome:
        named = {failed: f"error.{outcome['worker']}"}
    raised = {} if code == 0 else {rank: folder / name for rank, name in named.items()}
    raised = {rank: path for rank, path in raised.items() if path.exists()}
    if size == 0 and outcome["text"]:
        raise RuntimeError(f"the job did not begin: {outcome['text']}")
    if failed is not None and failed not in raised:
        raise RankFailed(f"rank {failed} {outcome['text']}", failed)
    if raised:
        errors = {rank: cloudpickle.loads(path.read_bytes()) for rank, path in raised.items()}
        if failed is not None:  # each host has a clock of its own
            host = errors[failed]["host"]
            errors = {rank: told for rank, told in errors.items() if told["host"] == host}
        # Later exceptions follow from the first.
        _raise(*min(errors.items(), key=lambda item: item[1]["time"]))
    results = []
    for rank in range(size):
        result = folder / f"result.{rank}"
        if not result.exists():
            how = f": {outcome['text']}" if outcome["text"] else ""
            raise RankFailed(f"rank {rank} ended without a result{how}", rank)
        results.append(cloudpickle.loads(result.read_bytes()))
    return results


def _raise(rank: int, told: dict[str, Any]) -> NoReturn:
    """Raises a rank's exception again, with the rank's traceback as the cause."""
    cause = RankTraceback(f"on rank {rank}:\n\n{told['traceback'].rstrip()}")
    error: BaseException | None = None
    if told["exception"] is not None:
        # The `__reduce__` of some classes gives arguments that they do not take: the text must do.
        with contextlib.suppress(Exception):
            error = cloudpickle.loads(told["exception"])
    if not isinstance(error, Exception):
        error = RankFailed(f"rank {rank}: {told['summary']}", rank)
    if hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(f"raised on rank {rank}")
    raise error from cause


@contextlib.contextmanager
def _forwarded() -> Iterator[tuple[int | None, int | None]]:
    """Makes the two descriptors that a child process is to print to.

    Yields:
        For stdout and stderr: None where the child can have this process's own, else a pipe whose
        lines go to `sys.stdout` or `sys.stderr`, which a notebook has replaced by its cell.
    """
    threads: list[threading.Thread] = []
    ends: list[int | None] = []
    for stream, own in ((sys.stdout, 1), (sys.stderr, 2)):
        if _number(stream) == own:
            stream.flush()  # this process printed it before the child prints
            ends.append(None)
            continue
        reader, writer = os.pipe()
        ends.append(writer)
        threads.append(threading.Thread(target=_forward, args=(reader, stream), daemon=True))
        threads[-1].start()
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            if end is not None:
                os.close(end)
        for thread in threads:
            thread.join(5.0)  # a process that outlived the job may still hold the pipe


def _number(stream: TextIO | None) -> int:
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return -1


def _forward(reader: int, stream: TextIO | None) -> None:
    with open(reader, errors="replace") as lines:
        for line in lines:
            if stream is not None:
                with contextlib.suppress(ValueError, OSError):  # closed
                    stream.write(line)
                    stream.flush()


def run_as_job() -> None:
    """Runs the job of the command line, which begins with the caller's process id and folder.

    Writes to `outcome` whether the job was refused, and which rank failed and how.
    """
    caller, folder = int(sys.argv[1]), Path(sys.argv[2])
    agents = Caller.of(os.environ)
    options = parse_arguments(sys.argv[3:])
    printer = Printer(os.environ, options.on("prefix_timestamp"))
    for notice in options.notices:
        printer.say(notice)
    outcome: dict[str, object] = {
        "refused": "", "failed": None, "text": "", "size": options.size,
        "fixed": not options.elastic,
    }  # fmt: skip
    code = 1
    try:
        if options.elastic:
            code = _run_elastic(options, printer, outcome, agents)
        else:
            code = _run_fixed(options, printer, outcome)
    except LaunchError as error:
        outcome["refused"] = str(error)
    (folder / "outcome").write_text(json.dumps(outcome))
    if os.getppid() != caller:  # the caller is gone
        shutil.rmtree(folder, ignore_errors=True)
    printer.close()
    sys.exit(code)


def _run_fixed(options: Options, printer: Printer, outcome: dict[str, object]) -> int:
    supervisor, mpirun = start_and_wait(options, printer)
    code = exit_code(supervisor)
    if (failed := supervisor.first_failed) is not None:
        tail = failed.streams["stderr"].tail
        outcome |= {"failed": failed.number, "text": how_it_ended(failed.status or 0, tail)}
    elif code:
        starter = mpirun.path if mpirun else "the job"
        outcome["text"] = f"{starter} ended with code {code}"
    return code


def _run_elastic(
    options: Options, printer: Printer, outcome: dict[str, object], agents: Caller | None
) -> int:
    loop, failed = run_elastic_job(options, printer, agents)
    coordinator = loop.coordinator
    epoch = coordinator.membership.epoch
    outcome["size"] = len(epoch.workers) if epoch else 0
    if coordinator.error:
        outcome["text"] = coordinator.error
    if failed is not None:
        told = how_it_ended(failed.status or 0, coordinator.agents.tail(failed.number))
        rank = failed.seat.rank if failed.seat else failed.number
        text = f"{told}\n{coordinator.error}".strip()
        outcome |= {"failed": rank, "worker": failed.number, "text": text}
    return elastic_code(loop, failed)
