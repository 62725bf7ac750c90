"""The command line of horoaccrun, generated from the table of settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horoacc import settings
from horoacc._version import __version__
from horoacc.launcher.config_file import read_config
from horoacc.launcher.hosts import Host, parse_hosts, read_hostfile
from horoacc.launcher.values import from_flag, from_text
from horoacc.settings import RETIRED, TABLE, Setting, Value


@dataclass(frozen=True)
class Options:
    """What a command line asks for."""

    size: int
    """The number of ranks."""
    command: list[str]
    hosts: list[Host]
    """Empty: this one."""
    given: dict[str, Value]
    """Settings of the command line and the configuration file."""
    values: dict[str, Value]
    """All settings, with those from the environment."""
    check_build: bool = False
    notices: list[str] = field(default_factory=list)
    """Lines to print before anything starts."""

    def text(self, key: str) -> str:
        """A setting that is text."""
        return str(self.values[key])

    def on(self, key: str) -> bool:
        """A setting that is on or off."""
        return bool(self.values[key])

    def seconds(self, key: str) -> float:
        """A setting that is a time."""
        return float(self.values[key])


class _Take(argparse.Action):
    """Collects a setting's value in the namespace's `given`."""

    def __init__(self, setting: Setting, **keywords: object) -> None:
        super().__init__(**keywords)  # type: ignore[arg-type]
        self.setting = setting

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Reads the flag; an error ends the program with a line that names it."""
        source = option_string or self.option_strings[0]
        try:
            if self.setting.kind == "bool":
                value: Value = from_flag(self.setting, source not in self.setting.opposites)
            else:
                value = from_text(self.setting, str(values), source)
        except ValueError as error:
            parser.error(str(error))
        namespace.given = {**namespace.given, self.setting.key: value}


class _Refuse(argparse.Action):
    """Ends the program at a flag of horovodrun without which the job would be another."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Says what to do instead."""
        parser.error(f"{option_string} cannot be used: {self.help}")


class _Ignore(argparse.Action):
    """Notes that a flag of horovodrun does nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Adds a line to the notices."""
        line = f"{option_string} has no effect: {self.help}"
        namespace.notices = [*namespace.notices, line]


def build_parser() -> argparse.ArgumentParser:
    """The parser, with one flag for each row of the table that has one."""
    parser = argparse.ArgumentParser(
        prog="horoaccrun",
        usage="horoaccrun -np N [flags] command [arguments]\n"
        "       horoaccrun tune -np N [flags] [-- options of the measurement]",
        description="Starts a command on N ranks, with mpirun or, without one, over TCP.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action="version", version=__version__)
    parser.add_argument("-np", "-n", "--num-proc", type=int, help="number of ranks")
    parser.add_argument("-H", "--hosts", help="hosts and their slots: host:4,host:4")
    parser.add_argument("-hostfile", "--hostfile", help="a file with a line 'host slots=4' each")
    parser.add_argument("-cb", "--check-build", action="store_true", help="show what was built")
    parser.add_argument("--config-file", help="a file with settings; see docs/settings.md")
    for section in dict.fromkeys(s.yaml[0] if s.yaml else "" for s in TABLE):
        group = parser.add_argument_group(section)
        for setting in TABLE:
            if setting.flag and (setting.yaml[0] if setting.yaml else "") == section:
                _add_flag(group, setting)
    for retired in RETIRED:
        parser.add_argument(
            *retired.flags,
            action=_Refuse if retired.refused else _Ignore,
            dest="notices",
            nargs=None if retired.values == 1 else retired.values,
            help=retired.why,
        )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and its arguments")
    parser.set_defaults(given={}, notices=[])
    return parser


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    switch = setting.kind == "bool"
    group.add_argument(
        *setting.flags,
        *setting.opposites,
        action=_Take,
        setting=setting,
        dest="given",
        nargs=0 if switch else None,
        metavar=None if switch else setting.key.upper(),
        help=f"{setting.doc} ({setting.env})".replace("%", "%%"),
    )


def parse_arguments(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Options:
    """Reads a command line.

    Args:
        arguments: Without the program's name.
        environ: The variables that give settings which the command line does not.

    Returns:
        What it asks for.

    Raises:
        SystemExit: With code 2 after a line that says what is wrong; with 0 after --help.
    """
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    try:
        given: dict[str, Value] = read_config(parsed.config_file) if parsed.config_file else {}
        given.update(parsed.given)
        values = {**settings.read(environ), **given}
        settings.check(values)
        hosts = _hosts(parsed)
    except ValueError as error:
        parser.error(str(error))
    size = parsed.num_proc
    if size is None and hosts:
        size = sum(host.slots for host in hosts)
    if not parsed.check_build:
        _check(parser, size, command, hosts)
    notices = [*parsed.notices, *settings.unheeded(environ)]
    return Options(size or 1, command, hosts, given, values, parsed.check_build, notices)


def _hosts(parsed: argparse.Namespace) -> list[Host]:
    if parsed.hosts and parsed.hostfile:
        raise ValueError("-H and --hostfile cannot both be given")
    if parsed.hosts:
        return parse_hosts(parsed.hosts)
    return read_hostfile(parsed.hostfile) if parsed.hostfile else []


def _check(
    parser: argparse.ArgumentParser, size: int | None, command: list[str], hosts: list[Host]
) -> None:
    if size is None:
        parser.error("-np is missing: how many ranks?")
    if size < 1:
        parser.error(f"-np must be at least 1, not {size}")
    if not command:
        parser.error("the command to run is missing")
    slots = sum(host.slots for host in hosts)
    if hosts and size > slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        parser.error(f"-np asks for {size} ranks, but {listed} has {slots} slots")
