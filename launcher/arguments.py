"""The command line of horoaccrun, generated from the table of settings."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horoacc import settings
from horoacc._version import __version__
from horoacc.launcher.config_file import read_config
from horoacc.launcher.hosts import Host, is_this_host, parse_hosts, read_hostfile
from horoacc.settings import RETIRED, SECTIONS, TABLE, Setting, Value, parse_given, renamed


@dataclass(frozen=True)
class Options:
    """The job that a command line asks for."""

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

    def others(self) -> list[str]:
        """The names of the hosts that are not this one."""
        return [host.name for host in self.hosts if not is_this_host(host.name)]

    @property
    def elastic(self) -> bool:
        """Whether ranks may come and go."""
        return bool(self.values["min_np"] or self.values["host_discovery_script"])

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
                value: Value = (source in self.setting.opposites) == self.setting.inverted
            else:
                text = " ".join(values) if isinstance(values, list) else str(values)
                value = parse_given(self.setting, text, source)
        except ValueError as error:
            parser.error(str(error))
        name = str(self.setting.flag) if source in self.setting.former_flags else source
        told = renamed(self.setting, source, name, str(values))
        namespace.notices = [*namespace.notices, *told]
        namespace.given = {**namespace.given, self.setting.key: value}


class _Retire(argparse.Action):
    """Notes that a flag of horovodrun does nothing, or refuses one that would make another job."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Says why, and ends the program if the flag's row (`const`) is refused."""
        if self.const.refused:
            parser.error(f"{option_string} cannot be used: {self.const.why}")
        line = f"{option_string} has no effect: {self.const.why}"
        namespace.notices = [*namespace.notices, line]


class _Help(argparse.Action):
    """Prints the flags for users, or all of them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        """Ends the program after that."""
        build_parser(everything=option_string == "--help-all").print_help()
        parser.exit()


class _Layout(argparse.HelpFormatter):
    """Shows a setting's flag in one spelling, with its value."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, 100)
        super().__init__(prog, max_help_position=32, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = action.option_strings
        if isinstance(action, _Take):
            setting = action.setting
            names = [setting.opposites[0] if setting.inverted else names[0]]
        return f"{', '.join(names)} {action.metavar or ''}".strip()


def build_parser(everything: bool = True) -> argparse.ArgumentParser:
    """The parser; with `everything` its help shows all flags in all spellings, not only users'."""
    parser = argparse.ArgumentParser(
        prog="horoaccrun",
        usage="horoaccrun -np N [flags] command [arguments]\n"
        "       horoaccrun doctor [-np N] [-H hosts] [--json] [flags]\n"
        "       horoaccrun tune -np N [flags] [-- options of the measurement]\n"
        "       horoaccrun top [JOB] | explain | report [JOB or FOLDER] | k8s manifest\n"
        "       horoaccrun replay RECORD -np N [flags] | replay RECORD --simulate",
        description="Starts a command on N ranks, with mpirun or, without one, over TCP.",
        epilog="Every setting is also a variable and a key of --config-file: docs/settings.md.",
        formatter_class=argparse.HelpFormatter if everything else _Layout,
        allow_abbrev=False,
        add_help=False,
    )
    job = parser.add_argument_group("Job")
    add = job.add_argument
    add("-np", "-n", "--num-proc", type=int, metavar="N", help="Number of ranks.")
    add("-H", "--hosts", metavar="HOSTS", help="Hosts and their slots: host:4,host:4.")
    add("-hostfile", "--hostfile", metavar="FILE", help="A file with a line 'host slots=4' each.")
    add("--config-file", metavar="FILE", help="A file with settings.")
    add("-cb", "--check-build", action="store_true", help="Show the parts that were built.")
    add("-v", "--version", action="version", version=__version__, help="Show the version.")
    add("-h", "--help", action=_Help, nargs=0, help="Show the flags for users.")
    add("--help-all", action=_Help, nargs=0, help="Show all flags, with their variables.")
    for section, heading in SECTIONS.items():
        group = parser.add_argument_group(heading)
        for setting in TABLE:
            if setting.yaml and setting.yaml[0] == section:
                _add_flag(group, setting, everything)
    retired_flags = parser.add_argument_group("Flags of horovodrun without a meaning here")
    for retired in RETIRED:
        retired_flags.add_argument(
            *retired.flags,
            action=_Retire,
            const=retired,
            dest="notices",
            nargs=None if retired.values == 1 else retired.values,
            help=retired.why if everything else argparse.SUPPRESS,
        )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(given={}, notices=[])
    return parser


def _add_flag(group: argparse._ArgumentGroup, setting: Setting, everything: bool) -> None:
    assert setting.flag
    switch = setting.kind == "bool"
    unit = "SECONDS" if setting.kind == "float" else setting.flag.rpartition("-")[2].upper()
    text = argparse.SUPPRESS
    if everything:
        text = f"{setting.doc} ({setting.env})"
    elif setting.audience == "users":
        text = re.split(r"(?<=\.)\s", setting.doc, maxsplit=1)[0].replace("`", "'")
    group.add_argument(
        *setting.flags,
        *setting.opposites,
        *setting.former_flags,
        action=_Take,
        setting=setting,
        dest="given",
        nargs=0 if switch else setting.words if setting.words > 1 else None,
        metavar=None if switch else "|".join(setting.choices) or unit,
        help=text.replace("%", "%%"),
    )


def parse_arguments(
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    complete: bool = True,
    allocated: Sequence[Host] = (),
) -> Options:
    """Reads a command line.

    Args:
        arguments: Its words.
        environ: Gives the settings that the command line does not.
        complete: Whether number and command must be there; a look at the hosts needs neither.
        allocated: The hosts if it names none.

    Raises:
        SystemExit: With code 2 after a line that names the error; with 0 after --help.
    """
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    try:
        notices = list(parsed.notices)
        given = read_config(parsed.config_file, notices) if parsed.config_file else {}
        given.update(parsed.given)
        values = {**settings.read(environ), **given}
        settings.check(values)
        hosts = _hosts(parsed)
        if not (hosts or values["host_discovery_script"]):
            hosts = list(allocated)
    except ValueError as error:
        parser.error(str(error))
    size = parsed.num_proc
    if size is None and hosts:
        size = sum(host.slots for host in hosts)
    if size is None:
        size = int(values["min_np"]) or None
    if complete and not parsed.check_build:
        _check_complete(parser, size, command)
    _check(parser, int(values["min_np"]) or size, hosts)
    notices += settings.notices(environ)
    return Options(size or 1, command, hosts, given, values, parsed.check_build, notices)


def _hosts(parsed: argparse.Namespace) -> list[Host]:
    if parsed.hosts and parsed.hostfile:
        raise ValueError("-H and --hostfile cannot both be given")
    if parsed.hosts:
        return parse_hosts(parsed.hosts)
    return read_hostfile(parsed.hostfile) if parsed.hostfile else []


def _check_complete(parser: argparse.ArgumentParser, size: int | None, command: list[str]) -> None:
    if size is None:
        parser.error("-np is missing: how many ranks?")
    if not command:
        parser.error("the command to run is missing")


def _check(parser: argparse.ArgumentParser, size: int | None, hosts: list[Host]) -> None:
    if size is not None and size < 1:
        parser.error(f"-np must be at least 1, not {size}")
    slots = sum(host.slots for host in hosts)
    if hosts and size is not None and size > slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        parser.error(f"-np asks for {size} ranks, but {listed} has {slots} slots")
