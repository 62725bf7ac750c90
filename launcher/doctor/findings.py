"""A finding of `horoaccrun doctor`, and how findings are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from horoacc._version import __version__

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One measured value of one host, and what to do if it is bad."""

    check: str
    level: Level
    host: str
    value: str
    advice: str = ""
    """A line; only "ok" has none."""


def failed(findings: Sequence[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(finding.level == "error" for finding in findings)


def as_json(findings: Sequence[Finding], hosts: Sequence[str]) -> str:
    """An object with `version`, `hosts`, `ok` and `findings`: a line of JSON for programs."""
    told = {"version": __version__, "hosts": list(hosts), "ok": not failed(findings)}
    return json.dumps({**told, "findings": [asdict(finding) for finding in findings]})


def as_text(findings: Sequence[Finding], hosts: Sequence[str]) -> str:
    """A line for each finding, two if something is to be done; hosts that are alike share one."""
    alike: dict[tuple[str, Level, str, str], list[str]] = {}
    for found in findings:
        key = found.check, found.level, found.value, found.advice
        alike.setdefault(key, []).append(found.host)
    names = {key: _names(which, hosts, key[1] == "ok") for key, which in alike.items()}
    wide = max((len(text) for text in names.values()), default=0)
    deep = max((len(key[0]) for key in alike), default=0)
    lines = []
    for key in alike:
        check, level, value, advice = key
        lines.append(f"{level:7}  {names[key]:{wide}}  {check:{deep}}  {value}")
        if advice:
            lines.append(f"{'':7}  -> {advice}")
    numbers = []
    for level in ("error", "warning"):
        number = sum(finding.level == level for finding in findings)
        numbers.append(f"{number} {level}{'' if number == 1 else 's'}")
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return "\n".join([*lines, "", f"{' and '.join(numbers)} on {where}; see docs/doctor.md"])


def _names(which: list[str], hosts: Sequence[str], short: bool) -> str:
    if len(which) > 2 and len(which) == len(hosts):
        return f"all {len(hosts)}"
    if short and len(which) > 4:
        return f"{which[0]} and {len(which) - 1} more"
    return ", ".join(which)
