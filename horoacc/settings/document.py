"""The table of settings as a page of the documentation."""

from __future__ import annotations

from horoacc.settings.parse import as_text
from horoacc.settings.retired_rows import RETIRED, RETIRED_VARIABLES
from horoacc.settings.setting import Setting
from horoacc.settings.table import BUILD, TABLE


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
        "Defaults are the variable's, and the key's where its unit or its sense is another.",
    ]
    sections = dict.fromkeys(setting.yaml[0] for setting in TABLE if setting.yaml)
    for section in sections:
        lines += ["", f"## `{section}`", ""]
        lines += ["| variable | flag | key | default | meaning |", "|---|---|---|---|---|"]
        for setting in TABLE:
            if setting.yaml and setting.yaml[0] == section:
                lines.append(_row(setting))
    lines += ["", "## While something is compiled", ""]
    lines += ["Variables only: what reads them runs before there is a command line.", ""]
    lines += ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{row.env}` | {_default(row.default)} | {row.doc} |" for row in BUILD]
    lines += ["", "## Flags of `horovodrun` without a meaning here", ""]
    lines += [
        "They are accepted, and `horoaccrun` says in a line why they do nothing; the same for"
    ]
    lines += ["Horovod's variables, of which `init()` tells where `horoaccrun` did not.", ""]
    lines += _retired(refused=False)
    lines += ["", "Variables that no flag stands for:", "", "| variable | why |", "|---|---|"]
    lines += [f"| `{row.env}` | {row.why} |" for row in RETIRED_VARIABLES]
    lines += ["", "With these the job would not be what was asked for, so they are errors:", ""]
    lines += _retired(refused=True)
    return "\n".join(lines) + "\n"


def _retired(refused: bool) -> list[str]:
    lines = ["| flag | variable | why |", "|---|---|---|"]
    for row in RETIRED:
        if row.refused == refused:
            flags = "<br>".join(f"`{flag}`" for flag in (row.flag, *row.aliases))
            lines.append(f"| {flags} | {f'`{row.env}`' if row.env else ''} | {row.why} |")
    return lines


def _row(setting: Setting) -> str:
    assert setting.yaml
    names = [f"`{name}`" for name in (setting.env, setting.horovod_env) if name]
    flags = [f"`{flag}`" for flag in setting.flags]
    if setting.opposites:
        flags.append(f"opposite: `{setting.opposites[0]}`")
    meaning = setting.doc
    if setting.choices:
        meaning += f" One of {', '.join(f'`{choice}`' for choice in setting.choices)}."
    default = _default(as_text(setting.default))
    if setting.factor != 1:
        default += f"; key and flag: {_default(as_text(int(setting.default) // setting.factor))}"
    elif setting.inverted:
        default += f"; key: {_default(as_text(not setting.default))}"
    cells = ["<br>".join(names), "<br>".join(flags), f"`{setting.yaml[1]}`", default, meaning]
    return "| " + " | ".join(cells) + " |"


def _default(text: str) -> str:
    return f"`{text}`" if text else "empty"
