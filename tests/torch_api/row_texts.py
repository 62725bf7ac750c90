"""What tests compare, pass and see, and on how many ranks: as their own text says."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract_rows import Row

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """A test, as its text says."""

    sizes: frozenset[int]
    compares: bool
    """It asserts something, or calls what does."""
    raises: frozenset[int]
    """The numbers of ranks on which it sees an error."""
    passes: frozenset[str]
    """The names of what it passes by name."""


@functools.cache
def module(file: str) -> ast.Module:
    """The text of a file of the tests."""
    return ast.parse((TESTS / file).read_text())


def defined(file: str) -> dict[str, tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """The functions and classes that a file has or takes from one beside it."""
    found: dict[str, tuple[str, ast.FunctionDef | ast.ClassDef]] = {}
    for node in module(file).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            beside = str(Path(file).with_name(f"{node.module}.py"))
            if (TESTS / beside).exists():
                theirs = defined(beside)
                found |= {one.name: theirs[one.name] for one in node.names if one.name in theirs}
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = (file, node)
    return found


def parts(file: str, name: str, seen: set[str]) -> Iterator[ast.AST]:
    """A test's own text, and that of what it names."""
    place, node = defined(file)[name]
    seen.add(name)
    yield node
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and one.id not in seen and one.id in defined(place):
            yield from parts(place, one.id, seen)


def walked(node: ast.AST, several: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All that is in a text, and whether it runs only where there is more than one rank."""
    yield node, several
    for field, value in ast.iter_fields(node):
        within = several
        if isinstance(node, ast.If) and field == "body":
            within = several or ast.unparse(node.test).endswith("> 1")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from walked(child, within)


@functools.cache
def cases_of(file: str) -> dict[str, Case]:
    """The tests of a file."""
    of_module: frozenset[int] = frozenset()
    for node in module(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_module = sizes([node.value])
    return {
        node.name: case(file, node, sizes(node.decorator_list) or of_module)
        for node in module(file).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def case(file: str, test: ast.FunctionDef, ranks: frozenset[int]) -> Case:
    """What a test does, with all that it names."""
    compares = False
    raises: set[int] = set()
    passes: set[str] = set()
    for part in parts(file, test.name, set()):
        for node, several in walked(part):
            if isinstance(node, ast.Assert):
                compares = True
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                compares |= "assert_" in called or called.endswith("same_bits")
                if called == "pytest.raises":
                    raises |= ranks - {1} if several else ranks
                passes |= {word.arg for word in node.keywords if word.arg is not None}
            elif isinstance(node, ast.Dict):
                texts = (key.value for key in node.keys if isinstance(key, ast.Constant))
                passes |= {text for text in texts if isinstance(text, str)}
    return Case(ranks, compares, frozenset(raises), frozenset(passes))


def sizes(marks: list[ast.expr]) -> frozenset[int]:
    """The numbers in the first `pytest.mark.ranks(...)`, or in a short form of it, among marks."""
    for mark in marks:
        for node in ast.walk(mark):
            if not isinstance(node, ast.Call):
                continue
            called, given = ast.unparse(node.func), node.args
            if called == "pytest.mark.parametrize" and ast.unparse(given[0]) == "'ranks'":
                assert isinstance(given[1], ast.List)
                called, given = "both", given[1].elts
            if called in ("pytest.mark.ranks", "ranks", "both"):
                numbers = [arg.value for arg in given if isinstance(arg, ast.Constant)]
                return frozenset(n for n in numbers if isinstance(n, int))
    return frozenset()


def known(tests: tuple[str, ...]) -> tuple[list[Case], list[str]]:
    """The tests that a row names, and what is wrong with the naming."""
    cases: list[Case] = []
    wrong: list[str] = []
    for test in tests:
        file, _, function = test.partition("::")
        if not (TESTS / file).exists():
            wrong.append(f"{file} does not exist")
        elif function not in cases_of(file):
            wrong.append(f"{test} does not exist")
        else:
            cases.append(cases_of(file)[function])
    return cases, wrong


def union(sets: list[frozenset[Any]]) -> frozenset[Any]:
    return frozenset().union(*sets)


def faults(row: Row) -> list[str]:
    """What is wrong with the tests of a row: that they are there, and where they run."""
    wrong = [] if row.tests else ["it has no test"]
    cases, missing = known(row.tests)
    ranks = union([one.sizes for one in cases])
    if not row.sizes <= ranks:
        missing.append(f"its tests run on {sorted(ranks)} ranks")
    return wrong + missing


def gaps(row: Row, optional: set[str]) -> list[str]:
    """What the tests of a row leave out: an oracle, an argument or an error, on some ranks.

    `optional`: the parameters with defaults of what the row is about.
    """
    wrong = []
    cases, _ = known(row.tests)
    compared = union([one.sizes for one in cases if one.compares])
    if not row.sizes <= compared:
        wrong.append(f"values are compared on {sorted(compared)} ranks")
    if not isinstance(row.errors, str):
        cases, missing = known(row.errors or row.tests)
        wrong += missing
        raised = union([one.raises for one in cases])
        if not row.error_sizes & row.sizes <= raised:
            wrong.append(f"an error is seen on {sorted(raised)} ranks")
    cases, missing = known(row.arguments or row.tests)
    wrong += missing
    if optional:
        passed = union([one.sizes for one in cases if one.passes & optional])
        if not row.sizes <= passed:
            wrong.append(f"one of {sorted(optional)} is passed on {sorted(passed)} ranks")
    return wrong
