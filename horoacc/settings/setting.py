"""What a row of the table of settings holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int", "float", "str"]
Scope = Literal["core", "launcher", "python"]


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
    """Who reads it: the C++ core, the launcher, or only this package's Python."""
    horovod_env: str | None = None
    horovod_words: tuple[tuple[str, Value], ...] = ()
    """What Horovod's variable may say and what it means, if that is not the setting's own form."""
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

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that set it; for a bool, those of its positive form."""
        return (self.flag, *self.aliases) if self.flag else ()

    @property
    def opposites(self) -> tuple[str, ...]:
        """The flags that set a bool the other way: its own word for it, and the `--no-` forms."""
        if self.kind != "bool":
            return ()
        given = (self.opposite,) if self.opposite else ()
        return (*given, *(f"--no-{flag[2:]}" for flag in self.flags if flag.startswith("--")))


@dataclass(frozen=True)
class Retired:
    """A flag of horovodrun that has no meaning here."""

    flag: str
    why: str
    """What happens instead, or what to use."""
    values: int = 0
    """How many values follow it. Without any, it also has a `--no-` form."""
    aliases: tuple[str, ...] = ()
    env: str | None = None
    """Horovod's variable for the same."""
    refused: bool = False
    """The job would not be what was asked for: an error, instead of a line and nothing else."""

    @property
    def flags(self) -> tuple[str, ...]:
        """All spellings."""
        names = (self.flag, *self.aliases)
        return names if self.values else (*names, "--no-" + self.flag.removeprefix("--"))


@dataclass(frozen=True)
class RetiredVariable:
    """A variable of Horovod's that has no meaning here, and that no flag stands for."""

    env: str
    why: str


@dataclass(frozen=True)
class BuildVariable:
    """A variable that only matters while something is compiled; it has no flag and no key."""

    env: str
    default: str
    doc: str
