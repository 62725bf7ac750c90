"""Functions of `horovod.common.util` that cut work into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def num_rank_is_power_2(num_rank: int) -> bool:
    """Says whether a number is a power of two.

    Args:
        num_rank: The number.

    Returns:
        True for 1, 2, 4, 8 and so on.
    """
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(items: Sequence[Any], n: int) -> list[Any]:
    """Cuts a list into pieces whose lengths differ by one at most, the longer ones first.

    Args:
        items: The list.
        n: How many pieces.

    Returns:
        The pieces.
    """
    shortest, longer = divmod(len(items), n)
    ends = [(index + 1) * shortest + min(index + 1, longer) for index in range(n)]
    return [items[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def is_iterable(x: Any) -> bool:
    """Says whether something can be iterated over.

    Args:
        x: Anything.

    Returns:
        True if so.
    """
    try:
        iter(x)
    except TypeError:
        return False
    return True
