"""The stall's warning and the flight record name the call that a rank waits for."""

from __future__ import annotations

import copy
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from faulted_jobs import FaultedJob
from holdups import Holdups
from hypothesis import strategies as st
from launcher_jobs import Job
from seeds import fuzzed

from horoacc.launcher import explain

SIMULATED = {"HOROACC_SIMULATED_HOSTS": "2+2"}
FOUR_HOSTS = {"HOROACC_SIMULATED_HOSTS": "2+2+2+2"}
STALL = {"HOROACC_STALL_CHECK_TIME_SECONDS": "1"}
# The fault matrix's bound for the warning; when a stalled tensor ends a job here, and the bound
# beyond it.
WARNING_SECONDS = 1.0 + 1.0
LIMIT, LATE_SECONDS = 2, 2.0
# It looks for a file every now and then, and may be found at that.
AWAITS_GO = r"(\S+ \(\S+\) < )*await_go \(faulted_rank\.py"


def _of_the_late(lines: Iterable[str]) -> list[str]:
    """The lines about the one tensor that is kept waiting."""
    return [line for line in lines if "'allreduce.late'" in line]


@pytest.mark.parametrize(("size", "variables"), [(2, {}), (4, SIMULATED), (8, FOUR_HOSTS)])
def test_a_stall_tells_where_the_missing_rank_is(
    faulted: FaultedJob, tmp_path: Path, size: int, variables: dict[str, str]
) -> None:
    """It sleeps; nothing of it runs but the core's own thread."""
    with Holdups() as holdups:
        faulted.start(size, "negotiating", 1, tmp_path / "go", **STALL | variables)
        # On a machine that holds up a rank for a second, others warn of earlier calls, too.
        faulted.wait_for(lambda: _of_the_late(faulted.warnings()), "the warning")
    (warning,) = _of_the_late(faulted.warnings())
    (waited,) = re.findall(r"has waited for (\d+) s", warning)
    # By the warning rank's clock, in whole seconds.
    assert 1 <= int(waited) <= holdups.allow(WARNING_SECONDS)
    missing = r"rank\(s\) ([02-7], )*1(, [2-7])* have not submitted it"
    assert re.search(r"'allreduce\.late' has waited .* " + missing, warning), warning
    waits = r"; rank 1 is in " + AWAITS_GO + r":\d+\) < run \(faulted_rank\.py:\d+\) <"
    assert re.search(waits, warning), warning
    (tmp_path / "go").touch()
    assert faulted.end() == 0


HOLDS_THE_LOCK = """
import ctypes, sys, time
import numpy as np
import horoacc as hvd
hvd.init()
hvd.barrier()
def compute():
    ctypes.PyDLL(None).usleep(5_000_000)  # without giving up the interpreter's lock
if hvd.rank() == 1:
    compute()
print(hvd.allreduce(np.ones(2), op=hvd.Sum, name="late").tolist(), flush=True)
"""


def test_a_rank_that_holds_the_interpreter_is_asked_as_well_and_is_not_silent() -> None:
    with Job() as job:
        result = job.run(
            "--tcp", "-np", "2", sys.executable, "-c", HOLDS_THE_LOCK,
            HOROACC_STALL_CHECK_TIME_SECONDS="1", HOROACC_HEARTBEAT_WARNING_SECONDS="3",
        )  # fmt: skip
    (warning,) = _of_the_late(line for line in result.err.splitlines() if " warning: " in line)
    assert re.search(r"; rank 1 is in compute \(<string>:8\) < <module>", warning), warning
    assert result.of(0) == result.of(1) == ["[2.0, 2.0]"]


def test_a_time_out_leaves_records_that_explain_it(faulted: FaultedJob, tmp_path: Path) -> None:
    folder = tmp_path / "flight"
    faulted.start(
        4, "negotiating", 2, tmp_path / "go", "--tcp", "--flight-dir", str(folder),
        HOROACC_STALL_SHUTDOWN_TIME_SECONDS=str(LIMIT), **STALL,
    )  # fmt: skip
    faulted.await_phase()
    begun = time.monotonic_ns()
    with Holdups() as holdups:
        faulted.wait_for(lambda: len(faulted.told) == 3, "the others' end")
    (tmp_path / "go").touch()
    assert faulted.end() == 9
    for told in faulted.told.values():
        assert (told["error"], told["culprit"]) == ("Timeout", 2), told
        # By the clock that all processes of the machine share.
        assert (told["at_ns"] - begun) / 1e9 < holdups.allow(LIMIT + LATE_SECONDS), told
        assert told["tensor"] == "allreduce.late" and "horoaccrun explain" in told["hint"], told
    lines = explain.explain(folder)
    words = r"Ranks 0, 1, 3 wait for rank 2 in 'allreduce\.late' since [\d:]{8}, for \d+\.\d s; "
    assert re.match(words, lines[0]), lines
    assert "rank 2 has done nothing since it completed 'barrier" in lines[0], lines
    assert re.search("and is in " + AWAITS_GO, lines[0]), lines
    assert len(lines) == 5 and all("was not submitted by rank(s) 2" in line for line in lines[1:])


def test_a_signal_asks_for_a_record_and_the_job_goes_on(
    faulted: FaultedJob, tmp_path: Path
) -> None:
    folder, other = tmp_path / "flight", tmp_path / "other"
    folder.mkdir()
    other.write_text("of the same user")
    for name in ("rank.1.json", ".rank.1.json"):  # by others, who may write to the folder, too
        (folder / name).symlink_to(other)
    faulted.start(
        2, "negotiating", 0, tmp_path / "go", "--tcp", HOROACC_FLIGHT_DIR=str(folder),
        HOROACC_FLIGHT_EVENTS="4",
    )  # fmt: skip
    faulted.await_phase()
    faulted.signal(1, signal.SIGUSR1)
    record = folder / "rank.1.json"
    faulted.job.wait_until(lambda: not record.is_symlink(), "the record")
    assert other.read_text() == "of the same user" and record.stat().st_mode & 0o777 == 0o600
    said = json.loads(record.read_text())
    assert said["rank"] == 1 and said["size"] == 2
    assert [event["what"] for event in said["events"]].count("queued") <= 4
    (call,) = said["calls"]
    assert (call["tensor"], call["ready"], call["missing"]) == ("allreduce.late", [1], [0])
    assert "in run" in said["stack"]
    (line, *_rest) = explain.explain(folder)
    assert line.startswith("Rank 1 waits for rank 0 in 'allreduce.late' since "), line
    (tmp_path / "go").touch()
    assert faulted.end() == 0


def test_a_folder_that_cannot_be_written_to_costs_one_warning(
    faulted: FaultedJob, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    faulted.start(2, "idle", 1, tmp_path / "go", HOROACC_FLIGHT_DIR=str(tmp_path / "file"))
    faulted.await_phase()
    faulted.signal(0, signal.SIGUSR1)
    faulted.wait_for(lambda: bool(faulted.warnings()), "the warning")
    assert "the record of the flight cannot be written" in faulted.warnings()[0]
    (tmp_path / "go").touch()
    assert faulted.end() == 0


def test_explain_without_records(tmp_path: Path) -> None:
    with Job() as job:
        nothing = job.run("explain", str(tmp_path), code=1)
        assert "there are no records (rank.N.json)" in nothing.out
        (tmp_path / "rank.0.json").write_text("{")
        damaged = job.run("explain", str(tmp_path), code=1)
        assert "rank.0.json is no record" in damaged.out


def _record(rank: int, calls: list[dict[str, object]]) -> dict[str, object]:
    """As csrc/runtime/trace/telemetry.cc writes it, of a job of three."""
    return {
        "format": 1, "rank": rank, "size": 3, "host": "h", "pid": 7, "time": 1e9, "agreed": 4,
        "reason": "told", "calls": calls, "stack": "",
        "events": [{"age": 2, "what": "done", "set": 0, "collective": 4, "tensor": "a",
                    "detail": ""}],
        "plans": {"left": "", "rounds": 0, "unlocks": {}, "lacks": {}},
    }  # fmt: skip


WAITS = {"tensor": "x", "set": 0, "ranks": [0, 1, 2], "age": 3.5, "collective": 0}


def test_explain_names_a_damaged_record_and_goes_on(tmp_path: Path) -> None:
    whole = {0: _record(0, [WAITS]), 2: _record(2, [WAITS])}
    for rank, record in whole.items():
        (tmp_path / f"rank.{rank}.json").write_text(json.dumps(record))
    broken = _record(1, [])
    for name, what, why in (
        ("calls", None, "it lacks 'calls'"),
        ("size", "3", "it says '3' where a number"),
        ("time", float("nan"), "nan is no time"),
        ("calls", [{**WAITS, "ranks": [0, 9]}], "it says '9' where a number"),
        ("rank", 2, "it is of rank 2"),
        ("format", 2, "another version"),
    ):
        said = {key: value for key, value in broken.items() if key != name}
        text = json.dumps(said if what is None else said | {name: what})
        (tmp_path / "rank.1.json").write_text(text)
        lines = explain.explain(tmp_path)
        assert lines[0].startswith("Ranks 0, 2 wait for rank 1 in 'x' since "), lines
        (told,) = [line for line in lines if "rank.1.json" in line]
        assert told.startswith("rank.1.json is damaged, and not heeded: ") and why in told, told
        assert not any("left no record" in line for line in lines), lines


def test_explain_names_what_unlocks_and_what_a_bucket_lacks(tmp_path: Path) -> None:
    records = {0: _record(0, [WAITS]), 1: _record(1, []), 2: _record(2, [WAITS])}
    for rank, (rounds, unlocks) in {
        0: (9, {"changed": 0, "peer": 3}),  # not of this rank's making
        1: (9, {"changed": 1, "wait": 2}),
        2: (90, {"wait": 2}),  # they lasted
    }.items():
        records[rank]["plans"] = {
            "left": "it waits: it lacks 'b'", "rounds": rounds, "unlocks": unlocks,
            "lacks": {"x": "'b', 'c' and 2 more"} if rank == 1 else {},
        }  # fmt: skip
        (tmp_path / f"rank.{rank}.json").write_text(json.dumps(records[rank]))
    lines = explain.explain(tmp_path)
    assert lines[0].endswith("; it lacks 'b', 'c' and 2 more."), lines
    (told,) = [line for line in lines if "locked plan" in line]
    assert told == (
        "Rank 1 left a locked plan of gradients once because the type, the shape or the place of "
        "a gradient changed, 2 times because it waited before all gradients of a step were there; "
        "only 9 steps needed one call a bucket (it waits: it lacks 'b')."
    )


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


@fuzzed(100, st.data())
def test_explain_bears_any_record(data: st.DataObject) -> None:
    record = copy.deepcopy(_record(1, [WAITS]))  # nothing that an example changes stays
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = record
        while data.draw(st.booleans()) and isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            inner = place[data.draw(st.sampled_from(keys))]
            if not isinstance(inner, dict | list):
                break
            place = inner
        if isinstance(place, dict) and place:
            place[data.draw(st.sampled_from(list(place)))] = data.draw(JSON)
        elif isinstance(place, list):
            place.append(data.draw(JSON))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rank.0.json").write_text(json.dumps(_record(0, [WAITS])))
        (Path(folder) / "rank.1.json").write_text(json.dumps(record))
        assert explain.explain(Path(folder))
