"""Reads `--config-file`: sections of `key: value`, a part of YAML.

A YAML library would be a dependency for two levels of scalars. Other YAML is an error that names
the line.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from horoacc.settings import SECTIONS, TABLE, Setting, Value, parse_given, renamed


class ConfigFileError(ValueError):
    """A configuration file that cannot be read; names file, line and error."""


def read_config(path: str, notices: list[str]) -> dict[str, Value]:
    """The settings that a configuration file gives, by their keys.

    Args:
        path: The file.
        notices: Gets a line for each key or value that has another name now.

    Raises:
        ConfigFileError: The file cannot be read, or has a key that no setting has, or a value that
            its setting cannot have.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"configuration file {path}: {error}") from None
    rows = {setting.yaml: setting for setting in TABLE if setting.yaml}
    former = {(s.yaml[0], s.former): s.yaml[1] for s in TABLE if s.yaml and s.former}
    values: dict[str, Value] = {}
    for line, section, key, given in _entries(text, path):
        name = former.get((section, key), key)
        setting = rows.get((section, name))
        if setting is None:
            raise ConfigFileError(f"{path}:{line}: {_unknown(section, key, list(rows.values()))}")
        told = renamed(setting, f"{section}.{key}", f"{section}.{name}", given)
        notices += [f"{path}:{line}: {notice}" for notice in told]
        try:
            values[setting.key] = parse_given(setting, given, f"{section}.{name}")
        except ValueError as error:
            raise ConfigFileError(f"{path}:{line}: {error}") from None
    return values


def _entries(text: str, path: str) -> list[tuple[int, str, str, str]]:
    """Line, section, key and value of every entry that has a value."""
    entries = []
    section = ""
    for count, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw)
        if not line.strip() or line.strip() in ("---", "..."):
            continue
        name, colon, value = line.strip().partition(":")
        indented = line[0] in " \t"
        if not colon or (value and value[0] not in " \t") or name.startswith(("-", "{", "[")):
            raise ConfigFileError(f"{path}:{count}: expected 'section:' or 'key: value'")
        name, value = name.strip().replace("-", "_"), _scalar(value.strip())
        if not indented:
            if value:
                raise ConfigFileError(
                    f"{path}:{count}: '{name}' stands outside a section; sections are "
                    + ", ".join(SECTIONS)
                )
            section = name
            if section not in SECTIONS:
                raise ConfigFileError(
                    f"{path}:{count}: there is no section '{name}'{_closest(name, list(SECTIONS))}"
                )
        elif not section:
            raise ConfigFileError(f"{path}:{count}: '{name}' stands outside a section")
        elif value.lower() not in ("", "null", "~"):
            entries.append((count, section, name, value))
    return entries


def _without_comment(line: str) -> str:
    quote = ""
    for index, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (index == 0 or line[index - 1] in " \t"):
            return line[:index]
    return line


def _scalar(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _unknown(section: str, key: str, rows: list[Setting]) -> str:
    keys = [row.yaml[1] for row in rows if row.yaml and row.yaml[0] == section]
    hint = _closest(key, keys)
    elsewhere = [row.yaml[0] for row in rows if row.yaml and row.yaml[1] == key]
    if not hint and elsewhere:
        hint = f"; it belongs in section '{elsewhere[0]}'"
    return f"section '{section}' has no key '{key}'{hint}"


def _closest(name: str, names: list[str]) -> str:
    found = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{found[0]}'?" if found else ""
