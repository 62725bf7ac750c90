"""How `horovod.common.util` compares versions."""

from __future__ import annotations

import re


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares two versions by their first three numbers.

    Args:
        ver: A version, such as "2.13.0+cpu".
        target: The least, such as "2.1.0".

    Returns:
        Whether `ver` is not below `target`.

    Raises:
        ValueError: One of them does not begin with numbers.
    """
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+){0,2}", version)
    if match is None:
        raise ValueError(f"'{version}' is no version")
    found = [int(part) for part in match[0].split(".")]
    return tuple(found + [0] * (3 - len(found)))
