"""Every setting of HoroACC, in one table.

A row gives a setting's name in the core, its environment variables, its `horoaccrun` flag, its key
in a configuration file and its documentation; nothing else in the project reads a setting from
anywhere. `python -m horoacc.settings` prints the table as the page docs/settings.md.

Which value holds: the command line of `horoaccrun`, then its configuration file, then `HOROACC_*`,
then the `HOROVOD_*` name of the same setting, then the default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int", "float", "str"]
Scope = Literal["core", "launcher", "both", "python"]

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_MIB = 1 << 20


class SettingError(ValueError):
    """A setting was given a value that it cannot have."""


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    key: str
    """The name in the core and in Python."""
    kind: Kind
    default: Value
    env: str
    """The environment variable, with a `HOROACC_` name."""
    doc: str
    scope: Scope = "core"
    """Who reads it: the C++ core, the launcher, both, or only this package's Python."""
    horovod_env: str | None = None
    flag: str | None = None
    """The flag of `horoaccrun`; a bool also gets its opposite."""
    opposite: str | None = None
    """The flag that sets a bool to the other value, where `--no-<flag>` is not its name."""
    aliases: tuple[str, ...] = ()
    """More spellings of `flag`."""
    yaml: tuple[str, str] | None = None
    """Section and key in a configuration file."""
    choices: tuple[str, ...] = ()
    factor: int = 1
    """What a flag or a configuration file's number is multiplied by (MiB instead of bytes)."""
    inverted: bool = False
    """The flag and the configuration file's key mean the opposite of the setting."""
    least: float = -math.inf


TABLE: tuple[Setting, ...] = (
    Setting(
        "control",
        "str",
        "auto",
        "HOROACC_CONTROL",
        "The plane that carries negotiation. `auto` and `board` use shared memory inside the host; "
        "`tcp` and `mpi` send all of it through that plane, even inside a host.",
        flag="--control",
        yaml=("params", "control"),
        choices=("auto", "board", "tcp", "mpi"),
    ),
    Setting(
        "fusion_threshold",
        "int",
        64 * _MIB,
        "HOROACC_FUSION_THRESHOLD",
        "Bytes of a bucket; 0 reduces every tensor alone. The flag and the key count MiB.",
        horovod_env="HOROVOD_FUSION_THRESHOLD",
        flag="--fusion-threshold-mb",
        yaml=("params", "fusion_threshold_mb"),
        factor=_MIB,
        least=0,
    ),
    Setting(
        "arena",
        "str",
        "gradients",
        "HOROACC_ARENA",
        "Which of torch's CPU allocations lie in memory that the ranks of a host reduce in place: "
        "those that become `gradients`, `all` from 64 KiB on, or none (`off`).",
        flag="--arena",
        yaml=("params", "arena"),
        choices=("gradients", "all", "off"),
    ),
    Setting(
        "arena_bytes",
        "int",
        0,
        "HOROACC_ARENA_BYTES",
        "Address space reserved for a rank's arena; pages are taken only when used. 0: as much as "
        "the machine has memory.",
        flag="--arena-bytes",
        yaml=("params", "arena_bytes"),
        least=0,
    ),
    Setting(
        "spin_microseconds",
        "int",
        -1,
        "HOROACC_SPIN_MICROSECONDS",
        "How long a wait spins before it sleeps. -1: a little if every rank of the host has a "
        "core, otherwise not at all.",
        flag="--spin-microseconds",
        yaml=("params", "spin_microseconds"),
        least=-1,
    ),
    Setting(
        "window_bytes",
        "int",
        0,
        "HOROACC_WINDOW_BYTES",
        "Window in which memory outside the arena is copied and reduced. 0: by the number of "
        "ranks and the size of the cache.",
        flag="--window-bytes",
        yaml=("params", "window_bytes"),
        least=0,
    ),
    Setting(
        "last_arriver_bytes",
        "int",
        256 << 10,
        "HOROACC_LAST_ARRIVER_BYTES",
        "Up to this size the last rank to arrive reduces for all; above it the ranks share.",
        flag="--last-arriver-bytes",
        yaml=("params", "last_arriver_bytes"),
        least=0,
    ),
    Setting(
        "reduction",
        "str",
        "canonical",
        "HOROACC_REDUCTION",
        "The order of summation. `canonical`: a balanced binary tree over the ranks, so that the "
        "bits of a result depend on no bucket, path, arrival order or placement.",
        flag="--reduction",
        yaml=("params", "reduction"),
        choices=("canonical",),
    ),
    Setting(
        "reduce_path",
        "str",
        "auto",
        "HOROACC_REDUCE_PATH",
        "Forces the data path of reductions; for tests and measurements.",
        flag="--reduce-path",
        yaml=("params", "reduce_path"),
        choices=("auto", "direct", "windows", "staged"),
    ),
    Setting(
        "timeline",
        "str",
        "",
        "HOROACC_TIMELINE",
        "Writes a Chrome trace of every tensor's way to this file. `DYNAMIC` waits for "
        "`start_timeline`, which works without it too.",
        horovod_env="HOROVOD_TIMELINE",
        flag="--timeline-filename",
        yaml=("timeline", "filename"),
    ),
    Setting(
        "timeline_mark_cycles",
        "bool",
        False,
        "HOROACC_TIMELINE_MARK_CYCLES",
        "Marks every negotiation round in the trace.",
        horovod_env="HOROVOD_TIMELINE_MARK_CYCLES",
        flag="--timeline-mark-cycles",
        yaml=("timeline", "mark_cycles"),
    ),
    Setting(
        "stall_check_disable",
        "bool",
        False,
        "HOROACC_STALL_CHECK_DISABLE",
        "Turns off the warning about tensors that some ranks have submitted and others have not.",
        horovod_env="HOROVOD_STALL_CHECK_DISABLE",
        flag="--stall-check",
        yaml=("stall_check", "enabled"),
        inverted=True,
    ),
    Setting(
        "stall_warning_seconds",
        "float",
        60.0,
        "HOROACC_STALL_CHECK_TIME_SECONDS",
        "After how long a stalled tensor is reported, with the ranks that miss it.",
        horovod_env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        flag="--stall-check-warning-time-seconds",
        yaml=("stall_check", "warning_time_seconds"),
        least=0,
    ),
    Setting(
        "stall_shutdown_seconds",
        "float",
        0.0,
        "HOROACC_STALL_SHUTDOWN_TIME_SECONDS",
        "After how long a stalled tensor ends the job; 0: never. Not below the warning's time.",
        horovod_env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        flag="--stall-check-shutdown-time-seconds",
        yaml=("stall_check", "shutdown_time_seconds"),
        least=0,
    ),
    Setting(
        "thread_affinity",
        "str",
        "",
        "HOROACC_THREAD_AFFINITY",
        "Comma-separated cores, one for the engine thread of each local rank.",
        horovod_env="HOROVOD_THREAD_AFFINITY",
        flag="--thread-affinity",
        yaml=("library_options", "thread_affinity"),
    ),
    Setting(
        "mpi_library",
        "str",
        "",
        "HOROACC_MPI_LIBRARY",
        "Path of the libmpi to use if the process has none yet and none started the job.",
        scope="python",
        flag="--mpi-library",
        yaml=("library_options", "mpi_library"),
    ),
    Setting(
        "cache_dir",
        "str",
        "",
        "HOROACC_CACHE_DIR",
        "Where framework ops that were not built at installation are kept; empty: "
        "`~/.cache/horoacc`.",
        scope="python",
        flag="--cache-dir",
        yaml=("library_options", "cache_dir"),
    ),
    Setting(
        "log_level",
        "str",
        "warning",
        "HOROACC_LOG_LEVEL",
        "The least severe message that the core prints.",
        horovod_env="HOROVOD_LOG_LEVEL",
        flag="--log-level",
        yaml=("logging", "level"),
        choices=("trace", "debug", "info", "warning", "error", "fatal"),
    ),
    Setting(
        "log_hide_time",
        "bool",
        False,
        "HOROACC_LOG_HIDE_TIME",
        "Leaves the time out of the core's messages.",
        horovod_env="HOROVOD_LOG_HIDE_TIME",
        flag="--log-without-timestamp",
        opposite="--log-with-timestamp",
        aliases=("--log-hide-timestamp",),
        yaml=("logging", "hide_timestamp"),
    ),
    Setting(
        "start_timeout_seconds",
        "float",
        60.0,
        "HOROACC_START_TIMEOUT",
        "How long ranks wait for each other in `init`.",
        scope="both",
        horovod_env="HOROVOD_START_TIMEOUT",
        flag="--start-timeout",
        yaml=("launcher", "start_timeout"),
        least=0,
    ),
    Setting(
        "tcp",
        "bool",
        False,
        "HOROACC_TCP",
        "Starts the ranks of this host without MPI; they negotiate over TCP and shared memory.",
        scope="launcher",
        flag="--tcp",
        opposite="--mpi",
        aliases=("--gloo",),
        yaml=("launcher", "tcp"),
    ),
    Setting(
        "mpirun",
        "str",
        "",
        "HOROACC_MPIRUN",
        "Path of the mpirun to use; empty: the one beside this Python, else the first on PATH.",
        scope="launcher",
        flag="--mpirun",
        yaml=("launcher", "mpirun"),
    ),
    Setting(
        "mpi_args",
        "str",
        "",
        "HOROACC_MPI_ARGS",
        "More arguments for mpirun, as one string.",
        scope="launcher",
        flag="--mpi-args",
        yaml=("launcher", "mpi_args"),
    ),
    Setting(
        "output_filename",
        "str",
        "",
        "HOROACC_OUTPUT_FILENAME",
        "A folder that gets each rank's output in `rank.N/stdout` and `rank.N/stderr`.",
        scope="launcher",
        flag="--output-filename",
        yaml=("launcher", "output_filename"),
    ),
    Setting(
        "prefix_timestamp",
        "bool",
        False,
        "HOROACC_PREFIX_TIMESTAMP",
        "Puts the time in front of every line that a rank prints.",
        scope="launcher",
        flag="--prefix-output-with-timestamp",
        aliases=("-prefix-timestamp",),
        yaml=("launcher", "prefix_output_with_timestamp"),
    ),
    Setting(
        "verbose",
        "bool",
        False,
        "HOROACC_VERBOSE",
        "Makes `horoaccrun` say what it starts and how.",
        scope="launcher",
        flag="--verbose",
        yaml=("launcher", "verbose"),
    ),
    Setting(
        "grace_seconds",
        "float",
        5.0,
        "HOROACC_GRACE_SECONDS",
        "How long ranks may take to end after SIGTERM before they are killed.",
        scope="launcher",
        flag="--grace-seconds",
        yaml=("launcher", "grace_seconds"),
        least=0,
    ),
)


@dataclass(frozen=True)
class Retired:
    """A flag of horovodrun that has no meaning here: accepted, with a line that says why."""

    flag: str
    takes_value: bool
    why: str


RETIRED: tuple[Retired, ...] = (
    Retired("--cycle-time-ms", True, "the engine wakes on submission instead of on a cycle"),
    Retired("--cache-capacity", True, "the agreed table has no capacity"),
    Retired("--hierarchical-allreduce", False, "the algorithm follows the topology"),
    Retired("--hierarchical-allgather", False, "the algorithm follows the topology"),
    Retired("--torus-allreduce", False, "the algorithm follows the topology"),
    Retired("--mpi-threads-disable", False, "only one thread of a rank calls MPI"),
    Retired("--num-nccl-streams", True, "NCCL is not used"),
    Retired("--gloo-timeout-seconds", True, "Gloo is not used; see --start-timeout"),
    Retired("--disable-cache", False, "the launcher caches nothing"),
)


def parse(setting: Setting, text: str, source: str) -> Value:
    """Reads one value.

    Args:
        setting: The row.
        text: What was given.
        source: The variable, flag or key that gave it, for the error.

    Returns:
        The value, of the row's kind.

    Raises:
        SettingError: The text is no value of this setting; names `source` and the text.
    """
    trimmed = text.strip()
    if setting.kind == "bool":
        # Horovod's rule is "a number above 0"; words are a courtesy of the new names.
        if not source.startswith("HOROVOD_") and trimmed.lower() in _WORDS:
            return _WORDS[trimmed.lower()]
        try:
            return int(trimmed) > 0
        except ValueError:
            raise SettingError(f"{source} must be 0 or 1, not '{text}'") from None
    if setting.kind == "str":
        if setting.choices and trimmed.lower() not in setting.choices:
            raise SettingError(f"{source} must be one of {_listed(setting.choices)}, not '{text}'")
        return trimmed.lower() if setting.choices else text
    what = "a whole number" if setting.kind == "int" else "a number"
    try:
        number = int(trimmed) if setting.kind == "int" else float(trimmed)
    except ValueError:
        raise SettingError(f"{source} must be {what}, not '{text}'") from None
    if not math.isfinite(number) or number < setting.least:
        limit = f" of at least {setting.least:g}" if setting.least > -math.inf else ""
        raise SettingError(f"{source} must be {what}{limit}, not '{text}'")
    return number


def as_text(value: Value) -> str:
    """Writes a value the way the core and the environment read it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def read(environ: Mapping[str, str]) -> dict[str, Value]:
    """Reads every setting from an environment.

    Args:
        environ: Variables; `HOROACC_*` wins over `HOROVOD_*`, an empty one counts as not given.

    Returns:
        The value of every row of the table, by key.

    Raises:
        SettingError: A variable holds no value of its setting, or two settings contradict.
    """
    values: dict[str, Value] = {}
    for setting in TABLE:
        values[setting.key] = setting.default
        for name in (setting.env, setting.horovod_env):
            if name and environ.get(name, "") != "":
                values[setting.key] = parse(setting, environ[name], name)
                break
    if values["timeline"] == "DYNAMIC":
        values["timeline"] = ""
    check(values)
    return values


def check(values: Mapping[str, Value]) -> None:
    """Raises SettingError for values that are each possible but not together."""
    shutdown, warning = values["stall_shutdown_seconds"], values["stall_warning_seconds"]
    if 0 < float(shutdown) < float(warning):
        raise SettingError(
            f"stall_shutdown_seconds is {as_text(shutdown)}, which is below "
            f"stall_warning_seconds, {as_text(warning)}"
        )


def core_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that the C++ core takes, as text.

    Args:
        environ: Variables, as for `read`.

    Returns:
        Every key that the core knows.

    Raises:
        SettingError: As `read`.
    """
    values = read(environ)
    return {s.key: as_text(values[s.key]) for s in TABLE if s.scope in ("core", "both")}


def documentation() -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m horoacc.settings > docs/settings.md` from the one table in",
        "`horoacc/settings.py`. The command line of `horoaccrun` wins over its `--config-file`,",
        "that over `HOROACC_*`, that over the `HOROVOD_*` name of the same setting.",
        "",
        "A configuration file has sections of `key: value`; `-` and `_` are the same in keys.",
    ]
    sections = dict.fromkeys(setting.yaml[0] for setting in TABLE if setting.yaml)
    for section in sections:
        lines += ["", f"## `{section}`", ""]
        lines += ["| variable | flag | key | default | meaning |", "|---|---|---|---|---|"]
        for setting in TABLE:
            if setting.yaml and setting.yaml[0] == section:
                lines.append(_row(setting))
    lines += ["", "## Flags of `horovodrun` without a meaning here", ""]
    lines += ["They are accepted, and `horoaccrun` says in a line why they do nothing.", ""]
    lines += ["| flag | why |", "|---|---|"]
    lines += [f"| `{retired.flag}` | {retired.why} |" for retired in RETIRED]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    names = [f"`{setting.env}`"]
    if setting.horovod_env:
        names.append(f"`{setting.horovod_env}`")
    flags = [f"`{flag}`" for flag in flag_names(setting)]
    default = f"`{as_text(setting.default)}`" if setting.default != "" else "empty"
    meaning = setting.doc
    if setting.choices:
        meaning += f" One of {_listed(setting.choices, '`')}."
    assert setting.yaml
    cells = ["<br>".join(names), "<br>".join(flags), f"`{setting.yaml[1]}`", default, meaning]
    return "| " + " | ".join(cells) + " |"


def flag_names(setting: Setting) -> list[str]:
    """All documented spellings of a row's flag, a bool's opposite last."""
    if setting.flag is None:
        return []
    names = [setting.flag, *setting.aliases]
    return [*names, opposite_flags(setting)[0]] if setting.kind == "bool" else names


def opposite_flags(setting: Setting) -> list[str]:
    """The flags that set a bool the other way: its own word for it, and the `--no-` forms."""
    given = [setting.opposite] if setting.opposite else []
    positive = [flag for flag in (setting.flag, *setting.aliases) if flag]
    return [*given, *(f"--no-{flag[2:]}" for flag in positive if flag.startswith("--"))]


def _listed(choices: tuple[str, ...], quote: str = "") -> str:
    return ", ".join(f"{quote}{choice}{quote}" for choice in choices)


if __name__ == "__main__":
    print(documentation(), end="")
