"""The numbers that Python repeats, so that importing it loads no core, are the contract's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from horoacc import dtypes, errors
from horoacc.collectives import calls

HEADER = (Path(__file__).resolve().parents[2] / "csrc" / "api" / "horoacc.h").read_text()


def numbers(enum: str) -> dict[str, int]:
    """The names and numbers of an enumeration of the C header."""
    found = re.search(r"typedef enum \{([^}]*)\} " + enum + ";", HEADER)
    assert found, enum
    return {name: int(n) for name, n in re.findall(r"HA_(\w+) = (\d+)", found[1])}


# What the backend of torch.distributed asks for, which calls the core from C++.
FROM_CPP = {"BIT_AND", "BIT_OR", "BIT_XOR"}
COLLECTIVES = numbers("ha_collective")


@pytest.mark.parametrize("name", sorted(COLLECTIVES.keys() & vars(calls)))
def test_collective(name: str) -> None:
    assert getattr(calls, name) == COLLECTIVES[name]


def test_names_of_collectives() -> None:
    names = {number: name.lower() for name, number in COLLECTIVES.items()}
    assert dict(enumerate(calls.COLLECTIVE_NAMES)) == names


def test_types() -> None:
    assert {name.lower(): n for name, n in numbers("ha_dtype").items()} == dtypes.NUMBERS


def test_reductions() -> None:
    assert {name.upper(): n for n, name in dtypes.OP_NAMES.items()} == {
        name: n for name, n in numbers("ha_op").items() if name not in FROM_CPP
    }


def test_every_kind_of_error_has_a_type() -> None:
    kinds = set(numbers("ha_error_kind").values()) - {0}
    assert kinds == set(errors._KINDS)
    assert len({type(errors.from_core(kind, "")) for kind in kinds}) == len(kinds)
