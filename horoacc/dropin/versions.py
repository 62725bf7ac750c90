"""How `horovod.common.util` compares versions."""

from __future__ import annotations

import re
from typing import Any


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


def support_non_legacy_keras_optimizers(k: Any) -> bool:
    """Says whether a Keras has optimizers of the kind that came with 2.11.

    Args:
        k: The module.

    Returns:
        True from that version on.
    """
    return is_version_greater_equal_than(k.__version__, "2.11")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+){0,2}", version)
    if match is None:
        raise ValueError(f"'{version}' is no version")
    found = [int(part) for part in match[0].split(".")]
    return tuple(found + [0] * (3 - len(found)))
