"""A row of the table of settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int", "float", "str"]
Scope = Literal["core", "launcher", "python"]
Audience = Literal["users", "experts", "tests"]


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
    """Its first sentence stands in `horoaccrun --help`."""
    scope: Scope = "core"
    """The reader of the value: the C++ core, the launcher, or only this package's Python."""
    audience: Audience = "users"
    """`horoaccrun --help` shows only the settings for users."""
    horovod_env: str | None = None
    horovod_words: tuple[tuple[str, Value], ...] = ()
    """The values of Horovod's variable with their meanings, if they are not the setting's own."""
    former: str = ""
    """The key before the setting was renamed: the variable, flag and configuration key that follow
    from it still work, and a notice names the new one."""
    flag: str | None = None
    """The flag of `horoaccrun`; a bool also gets its opposite."""
    opposite: str | None = None
    """The flag that sets a bool to the other value, where `--no-<flag>` is not its name."""
    aliases: tuple[str, ...] = ()
    """More spellings of `flag`."""
    yaml: tuple[str, str] | None = None
    """Section and key in a configuration file."""
    choices: tuple[str, ...] = ()
    former_choices: tuple[tuple[str, str], ...] = ()
    """Former names of choices, with the present ones."""
    words: int = 1
    """How many words follow the flag; the value has them with blanks between."""
    factor: int = 1
    """Unit of a flag's or a configuration file's number (MiB instead of bytes)."""
    inverted: bool = False
    """The flag and the configuration file's key mean the opposite of the setting."""
    least: float = -math.inf

    @property
    def former_env(self) -> str | None:
        """The variable before the setting was renamed."""
        return f"HOROACC_{self.former.upper()}" if self.former else None

    @property
    def former_flags(self) -> tuple[str, ...]:
        """The flag before the setting was renamed."""
        return (f"--{self.former.replace('_', '-')}",) if self.former else ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that set it; for a bool, those of its positive form."""
        return (self.flag, *self.aliases) if self.flag else ()

    @property
    def opposites(self) -> tuple[str, ...]:
        """The flags that set a bool to the other value: `opposite`, and the `--no-` forms."""
        if self.kind != "bool":
            return ()
        given = (self.opposite,) if self.opposite else ()
        return (*given, *(f"--no-{flag[2:]}" for flag in self.flags if flag.startswith("--")))


@dataclass(frozen=True)
class Retired:
    """A flag of horovodrun that has no meaning here."""

    flag: str
    why: str
    """What happens instead, or which flag to use."""
    values: int = 0
    """How many values follow it. Without any, it also has a `--no-` form."""
    aliases: tuple[str, ...] = ()
    env: str | None = None
    """Horovod's variable for the same."""
    refused: bool = False
    """The flag is an error, instead of a notice: the job would not be the one asked for."""

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
