"""Turns what a flag or a configuration file says into a setting's value."""

from __future__ import annotations

from horoacc.settings import Setting, SettingError, Value, parse


def from_text(setting: Setting, text: str, source: str) -> Value:
    """Reads a value in the unit of flags and configuration files.

    Args:
        setting: The row of the table.
        text: What was given.
        source: The flag or key, for the error.

    Returns:
        The value in the setting's own unit and sense.

    Raises:
        SettingError: The text is no value of this setting.
    """
    if setting.factor != 1:
        try:
            amount = float(text)
        except ValueError:
            raise SettingError(f"{source} must be a number, not '{text}'") from None
        if not setting.least <= amount * setting.factor < 2**63:
            raise SettingError(f"{source} cannot be '{text}'")
        return round(amount * setting.factor)
    value = parse(setting, text, source)
    return from_flag(setting, value) if isinstance(value, bool) else value


def from_flag(setting: Setting, on: bool) -> bool:
    """The value of a bool whose flag was given in its positive (`on`) or opposite form."""
    return on != setting.inverted
