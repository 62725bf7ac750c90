"""`run` and `run_elastic`: call a function on ranks that are Spark's tasks, on its executors."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import cloudpickle
from pyspark import SparkContext

from horoacc import dropin, settings
from horoacc.launcher.cluster_function import ClusterFunction
from horoacc.launcher.function import collect, flags
from horoacc.launcher.main import POSITION_VARIABLES
from horoacc.launcher.output import Printer
from horoacc.spark.elastic_tasks import ElasticTasks
from horoacc.spark.fixed_job import FixedJob
from horoacc.spark.tasks import Tasks

_PATIENCE_SECONDS = 5.0
_START_SECONDS = "600"
_TURN_SECONDS = 0.1
_LOST_SECONDS = 1.0
_UNREACHED = (
    "Spark's tasks ended without reaching this process: executors must reach it at its address, "
    "spark.driver.host, and any port"
)


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls a function on every rank of a new job, whose ranks are tasks of a barrier stage.

    Args:
        fn: The function; it calls `init()` itself. cloudpickle must know how to pickle it, its
            arguments and its results.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: The number of ranks; None: `spark.default.parallelism`.
        start_timeout: How long all tasks may take to start, in seconds; None: the variable
            HOROVOD_SPARK_START_TIMEOUT, or 600.
        use_mpi: True is refused: Spark starts the ranks.
        use_gloo: Has no effect.
        extra_mpi_args: Has no effect, and prints a line that says so.
        env: More variables of the ranks, which have those of Spark's tasks, and every
            HOROACC_ and HOROVOD_ variable of this process.
        stdout: Gets the ranks' lines, each with its rank; None: `sys.stdout`.
        stderr: The same for the other stream.
        verbose: 0: prints nothing itself.
        nics: Network interfaces for data between hosts.
        prefix_output_with_timestamp: Whether lines have a time.
        executable: The Python of the ranks; None: that of Spark's executors.

    Returns:
        What the function returned, by rank.

    Raises:
        ValueError: Arguments contradict each other.
        RankFailed: A rank died, or raised an exception that cannot be pickled; `culprit` is the
            rank.
        RuntimeError: There are too few slots or no SparkContext, or Spark's job failed.
        Exception: The exception of the first rank that failed, with that rank's traceback as cause.
    """
    if use_mpi:
        raise ValueError("use_mpi: Spark starts the ranks, and no mpirun; leave it out")
    context = active_context()
    size = _size(context, num_proc, "num_proc")
    seconds = _start_seconds(start_timeout)
    say = _sayer(stderr, verbose)
    if extra_mpi_args:
        say("extra_mpi_args has no effect: Spark starts the ranks, and no mpirun")
    if context.getConf().get("spark.dynamicAllocation.enabled", "").lower() == "true":
        raise ValueError(
            "spark.dynamicAllocation.enabled: Spark starts no barrier stage then; leave it out, "
            "or take run_elastic"
        )
    _check_slots(context, size, say)
    sinks = (stdout or sys.stdout, stderr or sys.stderr)
    printer = Printer(os.environ, prefix_output_with_timestamp, streams=sinks)
    call = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})))
    tasks = Tasks(context, printer, call, size)
    kept: dict[str, bytes] = {}

    def keep(name: str, body: bytes) -> None:
        if name.partition(".")[0] in ("result", "error") and "/" not in name:
            kept[name] = body

    grace = float(str(settings.read(os.environ)["grace_seconds"]))
    job = FixedJob(
        tasks, size, grace, _variables(env, nics), keep,
        executable=executable, as_horovod=dropin.installed(),
    )  # fmt: skip
    tasks.owner = job
    orderly = False
    try:
        tasks.start(barrier=True)
        due = time.monotonic() + seconds
        waiting = _Waiting(say, size, seconds)
        while not job.finished:
            ended = tasks.ended  # before the question why
            tasks.turn(_TURN_SECONDS)
            job.on_time()
            # Spark may tell that a task is lost before the task's connection does.
            waited = time.monotonic() >= tasks.failed_at + _LOST_SECONDS
            if tasks.failure and (not job.begun or (job.failed is None and waited)):
                raise RuntimeError(f"Spark's job failed: {tasks.failure}")
            if ended and not job.begun:
                raise RuntimeError(_UNREACHED)
            if not job.begun:
                waiting(job.present)
            if not job.begun and time.monotonic() >= due:
                raise RuntimeError(
                    f"Timed out waiting for Spark tasks to start: {job.present} of {size} are "
                    f"there after {seconds:g} s (start_timeout)"
                )
        orderly = job.failed is None
        outcome = {
            "refused": "", "failed": job.failed, "text": job.how, "size": size, "fixed": True,
        }  # fmt: skip
        kept["outcome"] = json.dumps(outcome).encode()
        # Not before the end: a caller that is killed leaves no folder.
        with tempfile.TemporaryDirectory(prefix="horoacc-run-") as folder:
            for name, body in kept.items():
                Path(folder, name).write_bytes(body)
            return collect(Path(folder), 0 if orderly else 1)
    finally:
        tasks.close(interrupt=not orderly)


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function on every rank of a new elastic job: ranks may die, leave and come.

    Each attempt of a Spark task is a host with one slot (docs/elastic.md).

    Args:
        fn: The function, which enters one that `hvd.elastic.run` wraps. cloudpickle must know
            how to pickle it, its arguments and its results.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: The number of ranks to begin with; None: `spark.default.parallelism`.
        min_num_proc: The fewest ranks to go on with; None: `num_proc`.
        max_num_proc: The most ranks, and the number of Spark's tasks; None: `num_proc`.
        start_timeout: How long the first `num_proc` tasks may take to start, in seconds; None:
            the variable HOROVOD_SPARK_START_TIMEOUT, or 600.
        elastic_timeout: How long the job may lack ranks, in seconds.
        reset_limit: How often the ranks may change.
        env: More variables of the ranks.
        stdout: Gets the ranks' lines; None: `sys.stdout`.
        stderr: The same for the other stream, and for the job's own lines.
        verbose: 0: prints nothing itself but changes of the ranks; 2: more.
        nics: Network interfaces for data between hosts.
        prefix_output_with_timestamp: Whether lines have a time.
        min_np: The older name of `min_num_proc`.
        max_np: The older name of `max_num_proc`.

    Returns:
        What the function returned, by the ranks at the job's end.

    Raises:
        ValueError: Arguments contradict each other.
        RankFailed: A rank died, and the job could not go on.
        RuntimeError: There are too few slots or no SparkContext, or Spark's job failed.
        Exception: That of a rank, if the job could not go on after it.
    """
    context = active_context()
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    size = _size(context, num_proc, "num_proc")
    least, most = size if least is None else least, size if most is None else most
    if not 1 <= least <= size <= most:
        raise ValueError(
            f"min_num_proc {least}, num_proc {size} and max_num_proc {most} are not in this order"
        )
    seconds = _start_seconds(start_timeout)
    say = _sayer(stderr, verbose)
    _check_slots(context, least, say)
    line = flags(
        {
            "--num-proc": size,
            "--min-num-proc": least,
            "--max-num-proc": most,
            "--elastic-timeout": elastic_timeout,
            "--reset-limit": reset_limit,
            "--verbose": verbose >= 2,
            "--prefix-output-with-timestamp": prefix_output_with_timestamp,
            "--as-horovod": dropin.installed(),
        }
    )
    call = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})))
    tasks = Tasks(context, Printer(os.environ), call, most)
    environ = _variables(env, nics)
    with ClusterFunction(line, environ, tasks.secret) as function:
        cluster = ElasticTasks(tasks, function.keep, environ)
        tasks.owner = cluster
        orderly = False

        def turn() -> None:
            ended = tasks.ended  # before the question why
            tasks.turn(_TURN_SECONDS)
            if tasks.failure:
                raise RuntimeError(f"Spark's job failed: {tasks.failure}")
            if ended:
                raise RuntimeError(_UNREACHED)

        try:
            tasks.start(barrier=False)
            due = time.monotonic() + seconds
            waiting = _Waiting(say, size, seconds)
            while cluster.present < size:
                turn()
                waiting(cluster.present)
                late = time.monotonic() >= due
                if late and cluster.present >= least:
                    break
                if late:
                    raise RuntimeError(
                        f"Timed out waiting for Spark tasks to start: {cluster.present} of {size} "
                        f"are there after {seconds:g} s (start_timeout)"
                    )
            with _redirected(stdout, stderr):
                code = function.run(cluster, turn)
            cluster.drain()
            orderly = code == 0
            return function.results(code)
        finally:
            tasks.close(interrupt=not orderly)


@contextlib.contextmanager
def _redirected(stdout: TextIO | None, stderr: TextIO | None) -> Iterator[None]:
    with (
        contextlib.redirect_stdout(stdout or sys.stdout),
        contextlib.redirect_stderr(stderr or sys.stderr),
    ):
        yield


def active_context() -> SparkContext:
    """Gives the active SparkContext.

    Raises:
        RuntimeError: There is none; one line says what is missing.
    """
    context = SparkContext._active_spark_context
    if context is not None:
        return context
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which(os.path.join(home, "bin/java"))
    if java is None:
        raise RuntimeError(
            "there is no SparkContext, and no Java to make one with: install Java 17 or newer, "
            "or set JAVA_HOME"
        )
    raise RuntimeError(
        "there is no SparkContext in this process: make a SparkSession first (one of Spark "
        "Connect has none)"
    )


def _size(context: SparkContext, given: int | None, name: str) -> int:
    size = context.defaultParallelism if given is None else given
    if size < 1:
        raise ValueError(f"{name} is {size}; a job has 1 rank at least")
    return size


def _start_seconds(given: float | None) -> float:
    if given is not None:
        return given
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", _START_SECONDS)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"HOROVOD_SPARK_START_TIMEOUT is {text!r}, not seconds") from None


def _sayer(stderr: TextIO | None, verbose: int) -> Callable[[str], None]:
    def say(text: str) -> None:
        if verbose:
            print(f"horoacc.spark: {text}", file=stderr or sys.stderr, flush=True)

    return say


class _Waiting:
    """Tells once that Spark has had no room for all tasks for a while."""

    def __init__(self, say: Callable[[str], None], size: int, seconds: float) -> None:
        self._say, self._size, self._seconds = say, size, seconds
        self._at = time.monotonic() + _PATIENCE_SECONDS

    def __call__(self, present: int) -> None:
        if time.monotonic() >= self._at:
            self._at = math.inf
            self._say(
                f"{present} of {self._size} tasks have started after {_PATIENCE_SECONDS:g} s; "
                f"Spark has up to {self._seconds:g} s (start_timeout) to find room for the others"
            )


def _check_slots(context: SparkContext, needed: int, say: Callable[[str], None]) -> None:
    """Refuses a job for which Spark never has room, and tells of one that has to wait for it.

    Raises:
        RuntimeError: Spark runs in this machine's processes, whose number its master says, and
            they are too few.
    """
    cores = int(context.getConf().get("spark.task.cpus", "1") or 1)
    master = context.master or ""
    inside = master.partition("[")[2].rstrip("]").split(",")
    if master.startswith("local-cluster"):
        slots = int(inside[0]) * (int(inside[1]) // cores)
    elif master.startswith("local"):
        threads = os.cpu_count() if inside[0] == "*" else int(inside[0] or 1)
        slots = (threads or 1) // cores
    else:
        if needed > context.defaultParallelism // cores:
            say(f"{needed} tasks are needed, and Spark has room for fewer now; it waits for them")
        return
    if slots < needed:
        raise RuntimeError(
            f"{needed} ranks are too many: Spark's {master} has {slots} slots for tasks"
        )


def _variables(env: Mapping[str, str] | None, nics: Sequence[str] | str | None) -> dict[str, str]:
    """The variables that ranks get besides those of Spark's tasks."""
    found = {
        name: text
        for name, text in os.environ.items()
        if name.startswith(("HOROACC_", "HOROVOD_")) and name not in POSITION_VARIABLES
    }
    if nics:
        found["HOROACC_NETWORK_INTERFACES"] = nics if isinstance(nics, str) else ",".join(nics)
    return found | dict(env or {})
