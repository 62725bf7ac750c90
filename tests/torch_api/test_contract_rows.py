"""Every row of Horovod's tables has tests that exist and run on the ranks that it asks for."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import contract_rows
import pytest
from contract_rows import ROWS, Row

import horoacc.torch as hvd
from horoacc import settings
from horoacc.launcher.arguments import build_parser

TESTS = Path(__file__).resolve().parents[1]


@functools.cache
def cases_of(file: str) -> dict[str, frozenset[int]]:
    """The tests of a file, and the numbers of ranks that each runs on."""
    tree = ast.parse((TESTS / file).read_text())
    found: dict[str, frozenset[int]] = {}
    of_module: frozenset[int] = frozenset()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_module = sizes([node.value])
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found[node.name] = sizes(node.decorator_list) or of_module
    return found


def sizes(marks: list[ast.expr]) -> frozenset[int]:
    """The numbers in the first `pytest.mark.ranks(...)` among expressions."""
    for mark in marks:
        for node in ast.walk(mark):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.ranks":
                numbers = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                return frozenset(n for n in numbers if isinstance(n, int))
    return frozenset()


def faults(row: Row) -> list[str]:
    """What is wrong with the tests of a row."""
    wrong = [] if row.tests else ["it has no test"]
    ranks: set[int] = set()
    for test in row.tests:
        file, _, function = test.partition("::")
        if not (TESTS / file).exists():
            wrong.append(f"{file} does not exist")
        elif function and function not in cases_of(file):
            wrong.append(f"{test} does not exist")
        elif not cases_of(file):
            wrong.append(f"{file} has no tests")
        else:
            ranks |= cases_of(file).get(function, frozenset())
    if row.everywhere and not row.sizes <= ranks:
        wrong.append(f"its tests run on {sorted(ranks)} ranks")
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table}-{row.name}")
def test_row(row: Row) -> None:
    assert faults(row) == []


def test_faults_are_found() -> None:
    job = "ranks/test_contract_job.py::"
    assert faults(Row("", "", ())) == ["it has no test", "its tests run on [] ranks"]
    (fault,) = faults(Row("", "", (job + "test_of_nothing",), everywhere=False))
    assert fault.endswith("test_of_nothing does not exist")
    (fault,) = faults(Row("", "", ("ranks/test_of_nothing.py",), everywhere=False))
    assert fault == "ranks/test_of_nothing.py does not exist"
    (fault,) = faults(Row("", "", ("ranks/test_optimizer.py::test_sparse_gradients",)))
    assert fault == "its tests run on [2, 3] ranks"


def test_every_name_of_the_door_has_a_row() -> None:
    rows = {row.name.partition(".")[0] for row in ROWS}
    own = {"__version__", "counters"}
    assert set(hvd.__all__) - own - rows == set()
    assert len({(row.table, row.name) for row in ROWS}) == len(ROWS)


def test_a_sample_of_rows_runs_on_sixteen_ranks() -> None:
    def on_sixteen(row: Row) -> bool:
        parts = [test.partition("::") for test in row.tests]
        return any(
            16 in cases_of(file).get(function, ()) for file, _, function in parts
            if (TESTS / file).exists()
        )  # fmt: skip

    sample = {row.name for row in ROWS if on_sixteen(row)}
    assert {"init", "rank", "sparse_allreduce_async", "allgather", "broadcast", "alltoall",
            "DistributedOptimizer"} <= sample  # fmt: skip


def test_variables_and_flags() -> None:
    heeded = {setting.horovod_env for setting in settings.TABLE} - {""}
    told = {retired.env for retired in settings.RETIRED} - {""}
    assert set(contract_rows.HEEDED) <= heeded
    assert set(contract_rows.TOLD) <= told | heeded
    assert set(contract_rows.FLAGS) - set(build_parser()._option_string_actions) == set()
