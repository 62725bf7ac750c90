"""Every row of Horovod's tables has tests that run on its ranks and see what they should."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contract_rows
import pytest
from contract_rows import ALL, ROWS, Row

import horoacc.torch as hvd
from horoacc import settings
from horoacc.launcher.arguments import build_parser

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
            if called in ("pytest.mark.ranks", "both"):
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


def gaps(row: Row) -> list[str]:
    """What the tests of a row leave out: an oracle, an argument or an error, on some ranks."""
    wrong = []
    cases, _ = known(row.tests)
    compared = union([one.sizes for one in cases if one.compares])
    if not row.sizes <= compared:
        wrong.append(f"values are compared on {sorted(compared)} ranks")
    if not isinstance(row.errors, str):
        cases, missing = known(row.errors or row.tests)
        wrong += missing
        raised = union([one.raises for one in cases])
        if not row.error_sizes <= raised:
            wrong.append(f"an error is seen on {sorted(raised)} ranks")
    cases, missing = known(row.arguments or row.tests)
    wrong += missing
    wanted = optional(row.name)
    if wanted:
        passed = union([one.sizes for one in cases if one.passes & wanted])
        if not row.sizes <= passed:
            wrong.append(f"one of {sorted(wanted)} is passed on {sorted(passed)} ranks")
    return wrong


def optional(name: str) -> set[str]:
    """The parameters with defaults of what a row is about."""
    thing: Any = hvd
    for word in name.split("."):
        thing = getattr(thing, word, None)
    if not callable(thing):
        return set()
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {one.name for one in parameters if one.default is not one.empty}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}-{row.name}")
def test_row(row: Row) -> None:
    assert faults(row) == []
    assert gaps(row) == []


def test_faults_are_found() -> None:
    job, single = "ranks/test_contract_job.py::", frozenset({1})
    assert faults(Row("", "", ())) == ["it has no test", "its tests run on [] ranks"]
    fault, _ = faults(Row("", "", (job + "test_of_nothing",)))
    assert fault.endswith("test_of_nothing does not exist")
    fault, _ = faults(Row("", "", ("ranks/test_of_nothing.py::test_it",), sizes=single))
    assert fault == "ranks/test_of_nothing.py does not exist"
    (fault,) = faults(Row("", "", ("ranks/test_optimizer.py::test_sparse_gradients",)))
    assert fault == "its tests run on [2, 3] ranks"


def test_gaps_are_found() -> None:
    places, errors = (f"ranks/test_contract_job.py::test_{name}" for name in
                      ("places", "errors_have_horovods_types"))  # fmt: skip
    assert gaps(Row("", "", (places,), "it never does")) == []
    assert gaps(Row("", "", (places,))) == ["an error is seen on [] ranks"]
    assert gaps(Row("", "", (places,), (errors,))) == []
    # Disagreements are seen where there is somebody to disagree with.
    zero_grad = "ranks/test_contract_optimizer.py::test_zero_grad"
    assert gaps(Row("", "", (zero_grad,))) == ["an error is seen on [2, 3, 4] ranks"]
    assert gaps(Row("", "", (zero_grad,), error_sizes=contract_rows.SEVERAL)) == []
    (gap,) = gaps(Row("", "barrier", (places,), (errors,)))
    assert gap == "one of ['process_set'] is passed on [] ranks"
    unsized = "torch_api/test_contract_rows.py::test_faults_are_found"
    assert gaps(Row("", "", (unsized,), "-", sizes=ALL)) == ["values are compared on [] ranks"]


def test_every_name_of_the_door_has_a_row() -> None:
    rows = {row.name.partition(".")[0] for row in ROWS}
    own = {"__version__", "counters"}
    assert set(hvd.__all__) - own - rows == set()
    assert len({(row.table, row.name) for row in ROWS}) == len(ROWS)


def test_a_sample_of_rows_runs_on_sixteen_ranks() -> None:
    def on_sixteen(row: Row) -> bool:
        parts = [test.partition("::") for test in row.tests]
        return any(
            16 in cases_of(file)[function].sizes for file, _, function in parts
        )  # fmt: skip

    sample = {row.name for row in ROWS if on_sixteen(row)}
    assert {"init", "rank", "sparse_allreduce_async", "allgather", "broadcast", "alltoall",
            "DistributedOptimizer"} <= sample  # fmt: skip


def test_variables_and_flags() -> None:
    heeded = {setting.horovod_env for setting in settings.TABLE} - {""}
    told = {retired.env for retired in (*settings.RETIRED, *settings.RETIRED_VARIABLES)} - {""}
    assert set(contract_rows.HEEDED) <= heeded
    assert set(contract_rows.TOLD) <= told
    assert set(contract_rows.FLAGS) - set(build_parser()._option_string_actions) == set()
