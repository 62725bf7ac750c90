"""The command lines of Open MPI's mpirun and of MPICH's."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from horoacc.launcher.arguments import Options
from horoacc.launcher.find_mpirun import Mpirun, is_modern
from horoacc.launcher.hosts import is_this_host

_SHIM = Path(__file__).resolve().parent / "shim.py"
# Variables that ranks on other hosts need; on this one mpirun inherits all of them.
_EXPORTED = re.compile(
    r"(HOROACC_|HOROVOD_|OMP_|MALLOC_|MKL_|OPENBLAS_|PYTHON|TORCH|TF_|KERAS_|CUDA_|NCCL_|NO_COLOR$"
    r"|PATH$|LD_LIBRARY_PATH$|VIRTUAL_ENV$)"
)


def command_line(
    mpirun: Mpirun,
    options: Options,
    environ: Mapping[str, str],
    cores: int,
    folders: Mapping[str, str],
) -> list[str]:
    """The command that starts all ranks.

    Args:
        mpirun: Whose command line to write.
        options: What was asked for.
        environ: The variables that the ranks get.
        cores: How many cores this host has for them.
        folders: Where Open MPI is to keep its `session` files and `shared` memory.

    Returns:
        The command. No value of a variable is on it, so neither is the secret.
    """
    names = sorted(name for name in environ if _EXPORTED.match(name))
    line = [mpirun.path, "-np", str(options.size)]
    if mpirun.flavour == "openmpi":
        line += _openmpi_flags(mpirun, options, names, cores)
        if "session" in folders:
            line += ["--prtemca", "prte_local_tmpdir_base", folders["session"]]
        if "shared" in folders:
            line += ["--mca", "btl_sm_backing_directory", folders["shared"]]
    else:
        line += _mpich_flags(options, names)
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
        flags += ["-H", ",".join(f"{host.name}:{host.slots}" for host in options.hosts)]
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
        flags += ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in options.hosts)]
    if not is_local(options):
        flags += ["-prepend-rank"]
    if agent := options.text("launch_agent"):
        # As rsh and not as ssh, which Hydra gives a flag of ssh's.
        flags += ["-launcher", "rsh", "-launcher-exec", agent]
    if interfaces := options.text("network_interfaces"):
        flags += ["-iface", interfaces.partition(",")[0].strip()]
    return [*flags, "-genvlist", ",".join(names)]


def is_local(options: Options) -> bool:
    """Whether all ranks are on this host."""
    return all(is_this_host(host.name) for host in options.hosts)
