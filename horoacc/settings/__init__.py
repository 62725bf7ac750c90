"""Every setting of HoroACC, in one table.

A row gives a setting's name in the core, its environment variables, its `horoaccrun` flag, its key
in a configuration file and its documentation; nothing else in the project reads a setting from
anywhere. Variables that only a compilation reads (`setup.py`, `horoacc.ops_build`) are listed there
too. `python -m horoacc.settings` prints the table as docs/settings.md.

The value that holds: of the command line of `horoaccrun`, else of its configuration file, else of
`HOROACC_*`, else of the `HOROVOD_*` name of the same setting, else the default.
"""

from horoacc.settings.document import documentation
from horoacc.settings.parse import (
    as_text,
    check,
    core_settings,
    parse,
    parse_given,
    read,
    renamed,
)
from horoacc.settings.retired_rows import RETIRED, RETIRED_VARIABLES, notices
from horoacc.settings.setting import (
    BuildVariable,
    Retired,
    RetiredVariable,
    Setting,
    SettingError,
    Value,
)
from horoacc.settings.table import BUILD, SECTIONS, TABLE

__all__ = [
    "BUILD",
    "RETIRED",
    "RETIRED_VARIABLES",
    "SECTIONS",
    "TABLE",
    "BuildVariable",
    "Retired",
    "RetiredVariable",
    "Setting",
    "SettingError",
    "Value",
    "as_text",
    "check",
    "core_settings",
    "documentation",
    "notices",
    "parse",
    "parse_given",
    "read",
    "renamed",
]
