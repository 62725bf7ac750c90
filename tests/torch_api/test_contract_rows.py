"""Every row of Horovod's tables has tests that run on its ranks and see what they should."""

from __future__ import annotations

import inspect
from typing import Any

import contract_rows
import pytest
import row_texts
from contract_rows import ALL, ROWS, Row
from row_texts import cases_of, faults

import horoacc.torch as hvd
from horoacc import settings
from horoacc.launcher import local
from horoacc.launcher.arguments import build_parser


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


def gaps(row: Row) -> list[str]:
    return row_texts.gaps(row, optional(row.name))


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
    assert set(contract_rows.SET) <= set(local._position(0, 1))
    assert set(contract_rows.FLAGS) - set(build_parser()._option_string_actions) == set()
