"""From text to the values of settings, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from horoacc.settings.setting import Setting, SettingError, Value
from horoacc.settings.table import TABLE

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse(setting: Setting, text: str, source: str) -> Value:
    """Reads one value of the row's kind.

    SettingError if it is none; it names the text and its `source`: a variable, a flag or a key.
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
    if setting.choices:
        choice = dict(setting.former_choices).get(trimmed.lower(), trimmed.lower())
        if choice not in setting.choices:
            listed = ", ".join(setting.choices)
            raise SettingError(f"{source} must be one of {listed}, not '{text}'")
        return choice
    if setting.kind == "str":
        return text
    what = "a whole number" if setting.kind == "int" else "a number"
    try:
        number = int(trimmed) if setting.kind == "int" else float(trimmed)
    except ValueError:
        raise SettingError(f"{source} must be {what}, not '{text}'") from None
    if not setting.least <= number < 2**63:  # neither NaN nor too large for the core
        limit = f" of at least {setting.least:g}" if setting.least > -math.inf else ""
        raise SettingError(f"{source} must be {what}{limit}, not '{text}'")
    return number


def parse_given(setting: Setting, text: str, source: str) -> Value:
    """Reads a value in the unit and sense of flags and configuration files, to those of the row."""
    if setting.factor != 1:
        try:
            amount = float(text)
        except ValueError:
            raise SettingError(f"{source} must be a number, not '{text}'") from None
        if not setting.least <= amount * setting.factor < 2**63:
            raise SettingError(f"{source} cannot be '{text}'")
        return round(amount * setting.factor)
    value = parse(setting, text, source)
    return value != setting.inverted if isinstance(value, bool) else value


def renamed(setting: Setting, source: str, name: str, text: str) -> list[str]:
    """Tells of a former name of a setting, and of its value: a line each."""
    lines = [f"{source} is now {name}"] if source != name else []
    if choice := dict(setting.former_choices).get(text.strip().lower()):
        lines.append(f"{name} '{text}' is now '{choice}'")
    return lines


def as_text(value: Value) -> str:
    """Writes a value the way the core and the environment read it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


def read(environ: Mapping[str, str]) -> dict[str, Value]:
    """Reads every setting from an environment; gives the value of every row of the table, by key.

    `HOROACC_*` wins over its former name, and that over `HOROVOD_*`. An empty variable counts as
    not given. SettingError if one holds no value of its setting, or two settings contradict.
    """
    values: dict[str, Value] = {}
    for setting in TABLE:
        values[setting.key] = setting.default
        for name in (setting.env, setting.former_env, setting.horovod_env):
            if name and environ.get(name, "") != "":
                values[setting.key] = _parse_variable(setting, environ[name], name)
                break
    if values["timeline"] == "DYNAMIC":
        values["timeline"] = ""
    check(values)
    return values


def _parse_variable(setting: Setting, text: str, name: str) -> Value:
    if name != setting.horovod_env or not setting.horovod_words:
        return parse(setting, text, name)
    words = dict(setting.horovod_words)
    if text.strip().lower() not in words:
        raise SettingError(f"{name} must be one of {', '.join(words)}, not '{text}'")
    return words[text.strip().lower()]


def check(values: Mapping[str, Value]) -> None:
    """Raises SettingError for values that are each possible but not together."""
    shutdown, warning = values["stall_shutdown_seconds"], values["stall_warning_seconds"]
    if 0 < float(shutdown) < float(warning):
        raise SettingError(
            f"stall_shutdown_seconds is {as_text(shutdown)}, which is below "
            f"stall_warning_seconds, {as_text(warning)}"
        )
    _check_elastic(values)


def _check_elastic(values: Mapping[str, Value]) -> None:
    least, most = int(values["min_np"]), int(values["max_np"])
    if 0 < most < least:
        raise SettingError(f"max_np is {most}, which is below min_np, {least}")
    words = str(values["blacklist_cooldown_range"]).split()
    if not words:
        return
    try:
        shortest, longest = (float(word) for word in words)
    except ValueError:
        shortest, longest = 0.0, 0.0
    if not 1 <= shortest <= longest <= 3600:
        raise SettingError(
            "blacklist_cooldown_range must be two numbers of seconds from 1 to 3600, the shortest "
            f"time first, not '{values['blacklist_cooldown_range']}'"
        )


def core_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that the C++ core takes, as text by key; arguments and errors as for `read`."""
    values = read(environ)
    return {s.key: as_text(values[s.key]) for s in TABLE if s.scope == "core"}
