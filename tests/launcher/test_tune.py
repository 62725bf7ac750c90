"""`horoaccrun tune`, the table that it writes, and the choice that follows from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import Job

from horoacc import selection_table
from horoacc.selection_table import LAST_ARRIVER, SLICES, Measurement

SIMULATED = ("--tcp", "-np", "2", "--simulated-hosts", "1+1")
GATHER = """
import os
# Another rank's table says the opposite, and counts for nothing.
os.environ["HOROACC_SELECTION_TABLE"] = os.environ["TABLE" + os.environ["HOROACC_RANK"]]
import numpy as np
import horoacc as hvd
hvd.init()
rows = hvd.allgather(np.full((2, 3), hvd.rank()), name="rows")
assert rows[:, 0].tolist() == [0, 0, 1, 1]
hvd.barrier()
"""


def table(file: Path, quick: str, slow: str) -> str:
    """Writes one in which the first takes a thousandth of the second's time."""
    selection_table.save(file, [Measurement(quick, (1, 1), 64, 1e-6),
                                Measurement(slow, (1, 1), 64, 1e-3)])  # fmt: skip
    return str(file)


def paths(trace: Path) -> set[str]:
    """The ways that the timeline names."""
    found: Any = json.loads(trace.read_text())
    events = found if isinstance(found, list) else found["traceEvents"]
    return {event["args"]["path"] for event in events if "path" in event.get("args", {})}


def test_tune_inside_a_host_finds_who_reduces_up_to_which_size(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    done = job.run("tune", "--tcp", "-np", "2", "--", "--most", "8K", "--batch", "0.001",
                   HOROACC_SELECTION_TABLE=str(file))  # fmt: skip
    assert done.of(0)[-1] == f"4 measurements of hosts with 2 ranks: {file}"
    rows = json.loads(file.read_text())["rows"]
    assert {(name, size) for name, _, size, _ in rows} == {
        (name, size) for name in (LAST_ARRIVER, SLICES) for size in (1024, 8192)
    }
    told = selection_table.load({"HOROACC_SELECTION_TABLE": str(file)}, 2)
    assert told.last_arriver_bytes in (0, 1024, 8192) and not told.warning


def test_tune_between_hosts_measures_every_algorithm(job: Job, tmp_path: Path) -> None:
    from horoacc import _core

    file = tmp_path / "table.json"
    table(file, "ring", "double_tree")  # of the same shape: it is replaced
    job.run("tune", *SIMULATED, "--selection-table", str(file), "--", "--most", "1K",
            "--batch", "0.001")  # fmt: skip
    rows = json.loads(file.read_text())["rows"]
    assert sorted(name for name, *_ in rows) == sorted(_core.algorithms())
    assert all(hosts == [1, 1] and size == 1024 and 0 < s < 60 for _, hosts, size, s in rows)


def test_tune_leaves_out_sums_in_the_order_of_ranks_that_change_hosts() -> None:
    """They would be measured as if each rank had a host of its own."""
    from horoacc import tune

    ordered, mixed = [(0, 2), (1, 2), (0, 1)], [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert tune.hosts_of(ordered) == ((2, 1), True)
    assert tune.hosts_of(mixed) == ((2, 2), False)
    for in_order in (True, False):
        names = {name for _, calls in tune.rounds_across(in_order) for name in calls}
        assert ("canonical" in names) is in_order and {"ring", "ring_all_gather"} <= names


@pytest.mark.parametrize("quick", ["ring_all_gather", "log_all_gather"])
def test_rank_0s_table_chooses_for_all_and_the_timeline_tells(
    job: Job, tmp_path: Path, quick: str
) -> None:
    slow = ({"ring_all_gather", "log_all_gather"} - {quick}).pop()
    trace = tmp_path / "trace.json"
    job.run(*SIMULATED, "--timeline-filename", str(trace), sys.executable, "-c", GATHER,
            TABLE0=table(tmp_path / "0.json", quick, slow),
            TABLE1=table(tmp_path / "1.json", slow, quick))  # fmt: skip
    assert paths(trace) == {quick}


def test_what_is_forced_is_in_the_timeline(job: Job, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    own = table(tmp_path / "0.json", "log_all_gather", "ring_all_gather")
    job.run(*SIMULATED, "--algorithm", "double_tree, ring_all_gather", "--timeline-filename",
            str(trace), sys.executable, "-c", GATHER, TABLE0=own, TABLE1=own)  # fmt: skip
    assert paths(trace) == {"ring_all_gather"}
    told = job.run(*SIMULATED, "--algorithm", "ring,double_tree", sys.executable, "-c", GATHER,
                   TABLE0=own, TABLE1=own, code=1)  # fmt: skip
    assert "ring and double_tree are for the same collective" in told.err


@pytest.mark.parametrize("wrong", ["stale", "another machine's", "torn", "no algorithm"])
def test_a_table_that_cannot_be_used_is_told_of_once(job: Job, tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "table.json"
    table(file, "ring_all_gather", "log_all_gather")
    content = json.loads(file.read_text())
    if wrong == "stale":
        content["version"] = "0.0.1"
    elif wrong == "another machine's":
        content["machine"]["cores"] = 1000
    elif wrong == "no algorithm":
        content["rows"][0][0] = "bell_all_gather"
    file.write_text(json.dumps(content)[: 20 if wrong == "torn" else None])
    done = job.run(*SIMULATED, sys.executable, "-c", GATHER, TABLE0=str(file), TABLE1=str(file))
    told = [line for line in done.err.splitlines() if "table of measured algorithms" in line]
    assert len(told) == 1 and "ignored" in told[0] and "horoaccrun tune" in told[0]


def test_the_table_lies_in_the_users_cache() -> None:
    usual = selection_table.path({"XDG_CACHE_HOME": "/caches"})
    assert usual is not None and usual.parent == Path("/caches/horoacc")
    assert selection_table.path({"HOROACC_SELECTION_TABLE": "off"}) is None


def test_the_bound_is_the_last_size_before_slices_win() -> None:
    def bound(*quicker: bool) -> int | None:
        rows = [
            Measurement(name, (2,), 1 << k, 1.0 if (name == LAST_ARRIVER) == first else 2.0)
            for k, first in enumerate(quicker)
            for name in (LAST_ARRIVER, SLICES)
        ]
        return selection_table.last_arriver_bytes(rows, 2)

    assert bound() is None
    assert bound(False, True) == 0
    assert bound(True, True, False, True) == 2
    assert bound(True, True) == 2
    assert selection_table.last_arriver_bytes([Measurement(SLICES, (2,), 1, 1.0)], 2) is None
