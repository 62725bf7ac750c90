"""How Slurm writes a list of nodes, `n[01-03,7],login`, and of numbers for each, `2(x3),1`."""

from __future__ import annotations

import itertools
import re

_NAME = r"[\w.-]+"
_ITEM = re.compile(r"(?:[\w.-]|\[[\d,-]+\])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_RUN = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
_MOST = 1 << 20


def expand(text: str) -> list[str]:
    """The names of nodes in their order.

    Args:
        text: As in SLURM_JOB_NODELIST: names with ranges, `rack[1-2]n[01-16]`.

    Raises:
        ValueError: It is no such list, or names more than a million nodes.
    """
    names: list[str] = []
    items = re.split(r",(?![^\[]*\])", text)
    for item in items:
        if not _ITEM.fullmatch(item):
            raise ValueError(f"'{text}' is no list of nodes, such as 'n[01-03,7],login'")
        parts = [_choices(part, text) for part in re.findall(rf"\[[^\]]*\]|{_NAME}", item)]
        names += map("".join, itertools.islice(itertools.product(*parts), _MOST))
    if len(names) >= _MOST:
        raise ValueError(f"'{text[:80]}' names too many nodes")
    return names


def counts(text: str) -> list[int]:
    """A number for each node.

    Args:
        text: As in SLURM_TASKS_PER_NODE: `2(x3),1` is 2, 2, 2 and 1.

    Raises:
        ValueError: It is no such list, or one of more than a million nodes.
    """
    numbers: list[int] = []
    for part in text.split(","):
        run = _RUN.fullmatch(part)
        if not run or len(numbers) + (times := int(run[2] or 1)) > _MOST:
            raise ValueError(f"'{text[:80]}' is no list of numbers, such as '2(x3),1'")
        numbers += [int(run[1])] * times
    return numbers


def _choices(part: str, text: str) -> list[str]:
    """What may stand in one place of a name: a word, or the numbers in brackets."""
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for word in part[1:-1].split(","):
        match = _RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not first <= last < first + _MOST:
            raise ValueError(f"'{text[:80]}' is no list of nodes: '{word}' is no range")
        found += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return found
