"""Every setting of HoroACC, in one table.

A row gives a setting's name in the core, its environment variables, its `horoaccrun` flag, its key
in a configuration file and its documentation; nothing else in the project reads a setting from
anywhere. What only matters while something is compiled is listed there too, and read by `setup.py`
and `horoacc.ops_build`. `python -m horoacc.settings` prints the table as docs/settings.md.

Which value holds: the command line of `horoaccrun`, then its configuration file, then `HOROACC_*`,
then the `HOROVOD_*` name of the same setting, then the default.
"""

from horoacc.settings.document import documentation
from horoacc.settings.parse import as_text, check, core_settings, parse, read
from horoacc.settings.retired_rows import RETIRED, RETIRED_VARIABLES, unheeded
from horoacc.settings.setting import (
    BuildVariable,
    Retired,
    RetiredVariable,
    Setting,
    SettingError,
    Value,
)
from horoacc.settings.table import BUILD, TABLE

__all__ = [
    "BUILD",
    "RETIRED",
    "RETIRED_VARIABLES",
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
    "parse",
    "read",
    "unheeded",
]
