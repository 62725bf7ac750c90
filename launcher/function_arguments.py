"""Turns the arguments of `horoacc.run` into flags of horoaccrun."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence

from horoacc.launcher.arguments import parse_arguments
from horoacc.launcher.hosts import is_this_host


def flags(given: Mapping[str, object]) -> list[str]:
    """Writes a command line.

    Args:
        given: Flags with their values: None and False for one that is not given, True for one
            without a value, a sequence for one with several.

    Returns:
        The command line.
    """
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


def check(line: list[str], environ: Mapping[str, str]) -> int:
    """Raises for what horoaccrun would refuse, before there is a process.

    Args:
        line: The flags.
        environ: The variables that give further settings.

    Returns:
        The number of ranks.

    Raises:
        ValueError: They cannot be; the text names the flag.
    """
    if "--gloo" in line and "--mpi" in line:
        raise ValueError("use_gloo and use_mpi cannot both be given")
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            options = parse_arguments([*line, "python"], environ)
    except SystemExit:
        raise ValueError(told.getvalue().strip().rpartition("error: ")[2]) from None
    strangers = [host.name for host in options.hosts if not is_this_host(host.name)]
    if strangers:
        raise ValueError(
            f"run() starts ranks on this host only, but {', '.join(strangers)} is another: "
            "start a script there with horoaccrun, mpirun or srun"
        )
    return options.size
