"""Inside an allocation of Slurm's: its hosts and slots, and srun, which starts ranks there."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from horoacc.launcher.hosts import Host, HostsError
from horoacc.launcher.nodelist import counts, expand
from horoacc.launcher.places import FOREIGN

# A step beside others of the job, with as many tasks as are asked for, wherever they are; without
# MPI; with the task's number before each line. All tasks are ended after one that failed, and the
# nodes that are left are kept after one that went down. By --overcommit a step has all cores of the
# job on its nodes, also with --cpus-per-task, which else implies --exact.
_FLAGS = (
    *("--overlap", "--overcommit", "--mpi=none", "--input=none", "--label", "--export=ALL"),
    *("--kill-on-bad-exit=1", "--no-kill", "--distribution=arbitrary"),
)
# Of the command by which the allocation was asked for: srun would take them for its own.
_REQUEST = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|JOB_NUM_NODES|NTASKS_PER_\w+|TASKS_PER_NODE|DISTRIBUTION"
    r"|HOSTFILE|ARBITRARY_NODELIST)$"
)


_FAILED = re.compile(rb"srun: error: (\S+): tasks? (\d+)\S*: (?:Exited with exit code (\d+)|(.+))")


class SlurmError(RuntimeError):
    """The allocation cannot run the job; the text says why."""


@dataclass(frozen=True)
class Allocation:
    """What Slurm has given to the job around this process."""

    job: str
    """Its number."""
    hosts: list[Host]

    def check(self, names: list[str]) -> None:
        """Raises SlurmError if a host is none of the allocation's."""
        own = [host.name for host in self.hosts]
        if foreign := [name for name in names if name not in own]:
            raise SlurmError(
                f"{', '.join(foreign)} is not in the allocation of Slurm's job {self.job}, "
                f"which has {', '.join(own)}"
            )


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation that salloc or sbatch has made, if this process is in one.

    A host has as many slots as tasks were asked for there; where none were asked for, as cores, and
    in a shell that is a step, whose variables tell of its own task. A task of a step with several
    is in none: each would start the whole job.

    Raises:
        HostsError: Slurm's variables cannot be read.
    """
    job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
    if not job or not nodes or environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return None
    asked = "SLURM_NTASKS" in environ and "SLURM_STEP_NUM_TASKS" not in environ
    tasks = environ.get("SLURM_TASKS_PER_NODE", "") if asked else ""
    try:
        names = expand(nodes)
        cores = counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "1"))
        each = int(environ.get("SLURM_CPUS_PER_TASK", "1"))
        slots = counts(tasks) if tasks else [max(1, number // each) for number in cores]
        hosts = [Host(name, number) for name, number in zip(names, slots, strict=True)]
    except (ValueError, ZeroDivisionError) as error:
        raise HostsError(f"the variables of Slurm's job {job} cannot be read: {error}") from None
    return Allocation(job, hosts)


def find_srun(environ: Mapping[str, str]) -> tuple[str, str]:
    """The path and the version of srun.

    Raises:
        SlurmError: There is none, or it does not work.
    """
    path = shutil.which("srun", path=environ.get("PATH"))
    job = environ.get("SLURM_JOB_ID", "")
    if path is None:
        raise SlurmError(
            f"this is an allocation of Slurm's (job {job}), but srun, which would start the ranks "
            "on its hosts, is not on PATH"
        )
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmError(f"{path} does not work: {error}") from None
    return path, shown.rpartition(" ")[2].strip()


def srun_flags(size: int, hosts: list[Host], environ: Mapping[str, str]) -> list[str]:
    """The flags by which srun starts `size` tasks, filling hosts one after the other."""
    flags = [*_FLAGS, f"--ntasks={size}"]
    if each := environ.get("SLURM_CPUS_PER_TASK"):
        flags.append(f"--cpus-per-task={each}")
    left, places = size, []
    for host in hosts:
        places += [host.name] * min(left, host.slots)
        left -= min(left, host.slots)
    return [*flags, f"--nodes={len(set(places))}", f"--nodelist={','.join(places)}"]


def failure(line: bytes) -> tuple[int, str, int] | None:
    """The rank, the host and the status, negative for a signal, if srun tells of a failed task."""
    if not (match := _FAILED.match(line)):
        return None
    names = {signal.strsignal(number): number for number in signal.valid_signals()}
    how = (match[4] or b"").decode().removesuffix(" (core dumped)")
    status = int(match[3]) if match[3] else -names.get(how, signal.SIGKILL)
    return int(match[2]), match[1].decode(), status


def for_step(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a step: without what the allocation was asked for.

    Its tasks may use all cores of the job on their hosts, as mpirun's.
    """
    # Nor with those of a step around this program, whose tasks have places of their own.
    kept = {
        name: text for name, text in environ.items()
        if not _REQUEST.match(name) and not name.startswith(FOREIGN)
    }  # fmt: skip
    return kept | {"SLURM_CPU_BIND": "none"}
