"""The table of settings as a page of the documentation."""

from __future__ import annotations

from horoacc.settings.parse import as_text
from horoacc.settings.retired_rows import RETIRED, RETIRED_VARIABLES
from horoacc.settings.setting import Setting
from horoacc.settings.table import BUILD, SECTIONS, TABLE


def documentation() -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Settings",
        "",
        "Written by `python -m horoacc.settings > docs/settings.md` from the one table in",
        "`horoacc/settings/`. The command line of `horoaccrun` wins over its `--config-file`,",
        "that over `HOROACC_*`, that over the `HOROVOD_*` name of the same setting.",
        "",
        "A configuration file has sections of `key: value`; `-` and `_` are the same in keys.",
        "A default is the variable's; the key's stands behind it where its unit or sense differs.",
    ]
    for section, heading in SECTIONS.items():
        rows = [s for s in TABLE if s.yaml and s.yaml[0] == section and s.audience != "tests"]
        lines += ["", f"## {heading}: `{section}`", "", *_table(rows)]
    lines += ["", "## For tests: `params`", ""]
    lines += ["`horoaccrun --help` does not show these; `horoaccrun --help-all` does.", ""]
    lines += _table([setting for setting in TABLE if setting.audience == "tests"])
    lines += ["", "## While something is compiled", ""]
    lines += ["These are variables only: setup.py and the builds of framework ops read them.", ""]
    lines += ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{row.env}` | {_default(row.default)} | {row.doc} |" for row in BUILD]
    lines += ["", "## Flags of `horovodrun` without a meaning here", ""]
    lines += [
        "`horoaccrun` accepts them, and prints a line that says why they do nothing. For Horovod's",
        "variables rank 0 prints it in `init()` if `horoaccrun` did not start the job.",
        "",
    ]
    lines += _retired(refused=False)
    lines += ["", "Variables without a flag:", "", "| variable | why |", "|---|---|"]
    lines += [f"| `{row.env}` | {row.why} |" for row in RETIRED_VARIABLES]
    lines += ["", "These are errors, since the job would not be the one asked for:", ""]
    lines += _retired(refused=True)
    return "\n".join(lines) + "\n"


def _retired(refused: bool) -> list[str]:
    lines = ["| flag | variable | why |", "|---|---|---|"]
    for row in RETIRED:
        if row.refused == refused:
            flags = "<br>".join(f"`{flag}`" for flag in (row.flag, *row.aliases))
            lines.append(f"| {flags} | {f'`{row.env}`' if row.env else ''} | {row.why} |")
    return lines


def _table(settings: list[Setting]) -> list[str]:
    lines = ["| variable | flag | key | default | meaning |", "|---|---|---|---|---|"]
    return lines + [_row(setting) for setting in settings]


def _row(setting: Setting) -> str:
    assert setting.yaml
    names = [f"`{name}`" for name in (setting.env, setting.horovod_env) if name]
    flags = [f"`{flag}`" for flag in setting.flags]
    if setting.opposites:
        flags.append(f"opposite: `{setting.opposites[0]}`")
    meaning = setting.doc
    if setting.choices:
        meaning += f" One of {', '.join(f'`{choice}`' for choice in setting.choices)}."
    if setting.former_env:
        meaning += f" Formerly `{setting.former_env}`, which still works."
    default = _default(as_text(setting.default))
    if setting.factor != 1:
        default += f"; key and flag: {_default(as_text(int(setting.default) // setting.factor))}"
    elif setting.inverted:
        default += f"; key: {_default(as_text(not setting.default))}"
    cells = ["<br>".join(names), "<br>".join(flags), f"`{setting.yaml[1]}`", default, meaning]
    return "| " + " | ".join(cells) + " |"


def _default(text: str) -> str:
    return f"`{text}`" if text else "empty"
