"""`horoaccrun replay`: what is recorded, what the simulator makes of it, and real ranks' calls."""

from __future__ import annotations

import bisect
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import Job

from horoacc import _core
from horoacc.launcher.look.recording import Action, Call, Recording, RecordingError, load, recorded
from horoacc.launcher.look.spans import Calls, Span
from horoacc.replay.predict import predict

LOOKED_AT = str(Path(__file__).with_name("looked_at.py"))
STEP, STEPS = 0.1, 5

# Of each step: a call, its bytes, when a rank submits it, when it is done, how long it was waited.
Row = tuple[str, int, float, float, float]


def calls(*ranks: Sequence[Row]) -> Calls:
    spans = {}
    for rank, rows in enumerate(ranks):
        spans[rank] = [
            Span(rank, name, 0, number * STEP + queued, number * len(rows) + at + 1,
                 number * STEP + done, number * STEP + done, waited, "allreduce", size, "float32")
            for number in range(STEPS + 1)
            for at, (name, size, queued, done, waited) in enumerate(rows)
        ]  # fmt: skip
    return Calls(spans, (STEPS + 1) * STEP)


ROWS: list[Row] = [
    ("allreduce.a", 400, 0.02, 0.04, 0.0),
    ("allreduce.b", 800, 0.05, 0.09, 0.03),
]


def test_whole_steps_are_recorded() -> None:
    found = recorded(calls(ROWS, ROWS), ["h", "h"])
    # The first bucket that is remembered may not be whole, so that steps begin with the second.
    assert found.steps == STEPS and found.seconds == pytest.approx(STEP)
    assert [call[:4] for call in found.calls[:2]] == [
        ("b", "allreduce", "float32", (800, 800)), ("a", "allreduce", "float32", (400, 400)),
    ]  # fmt: skip
    assert len(found.calls) == 2 * STEPS
    for rank in found.ranks:
        own = [(round(gap, 6), waits, found.calls[call].name) for gap, waits, call in rank]
        # "a" was done before anybody asked for it: it is asked for with "b".
        assert own[2:6] == [
            (0.03, False, "a"), (0.03, False, "b"), (0.01, True, "b"), (0.0, True, "a"),
        ]  # fmt: skip
        computed = sum(gap for gap, *_ in rank)
        assert computed == pytest.approx(STEPS * (STEP - 0.03))


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = recorded(calls(ROWS, ROWS), ["h", "i"])
    (tmp_path / "calls.json").write_text(found.text())
    for path in (tmp_path, tmp_path / "calls.json"):
        again = load(path)
        assert again.calls == found.calls and again.hosts == ("h", "i")
        assert [len(rank) for rank in again.ranks] == [len(rank) for rank in found.ranks]


def bad(**changed: Any) -> str:
    return json.dumps(json.loads(recorded(calls(ROWS, ROWS), ["h", "h"]).text()) | changed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no recording"),
        ("[]", "is no recording"),
        (bad(format=2), "it is of another version"),
        (bad(hosts=[]), "it has no calls"),
        (bad(ranks=[[], []]), "its ranks do not make the same calls"),
        (bad(ranks=[[[-1.0, 0, 0]]] * 2, calls=[["a", "allreduce", "float32", [4, 4], 1]]),
         "a gap is no time"),
        (bad(calls=[["a", "join", "float32", [4, 4], 1]]), "a is no call"),
        (bad(calls=[["a", "allreduce", "float32", [4, 1 << 50], 1]]), "a size that cannot be"),
        (bad(starts=[]), "it has no steps"),
        (bad(starts=[0, 99]), "it has no steps"),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(RecordingError, match=words):
        load(tmp_path)


def test_what_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"neither calls\.json nor records"):
        load(tmp_path)
    with pytest.raises(RecordingError, match="no call comes twice"):
        recorded(calls(ROWS, [("allreduce.c", *row[1:]) for row in ROWS]), ["h", "h"])
    with pytest.raises(RecordingError, match="a rank has made no calls"):
        recorded(calls(ROWS, []), ["h", "h"])


def one_call(before: float, after: float, late: float = 0.0) -> Recording:
    """A step: compute, submit, compute, wait. Rank 1 submits later."""
    call = Call("x", "allreduce", "float32", (1 << 20, 1 << 20), 1)
    ranks = tuple(
        (Action(before + rank * late, False, 0), Action(after, True, 0)) for rank in range(2)
    )
    return Recording(("h", "i"), (0,), 1.0, (call,), ranks)


def fabric() -> _core.Fabric:
    made = _core.Fabric()
    made.nic_bandwidth = made.stream_bandwidth = 1e8
    return made


@pytest.mark.parametrize("hosts", [2, 4])
def test_the_simulator_adds_up(hosts: int) -> None:
    links = fabric()
    each = min(
        _core.simulate(name, [1] * hosts, 1 << 20, links).seconds
        for name in ("ring", "double_tree", "hierarchical", "canonical", "cpu_reduce")
    )
    shape = [1] * hosts

    def step(recording: Recording, **more: Any) -> float:
        return predict(recording, shape, links, call_seconds=0.0, **more).step

    assert step(one_call(0.0, 0.0)) == pytest.approx(each, rel=0.02)
    assert step(one_call(0.01, 0.0)) == pytest.approx(0.01 + each, rel=0.02)
    assert step(one_call(0.01, 0.5)) == pytest.approx(0.51)  # it is hidden
    assert step(one_call(0.01, 0.5), compute=2.0) == pytest.approx(1.02)
    assert step(one_call(0.01, 0.0, 0.2)) == pytest.approx(0.21 + each, rel=0.02)
    told = predict(one_call(0.01, 0.0, 0.2), shape, links, call_seconds=0.0)
    assert told.waiting == pytest.approx(0.2 + each, rel=0.02) and len(told.algorithms) == 1
    links.nic_bandwidth = links.stream_bandwidth = 1e7
    assert step(one_call(0.0, 0.0)) > 5 * each


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as made:
        yield made


def test_real_ranks_make_the_recorded_calls(job: Job, tmp_path: Path) -> None:
    look = {"HOROACC_LOOK_DIR": str(tmp_path / "look")}
    running = job.start(
        "--tcp", "-np", "2", sys.executable, LOOKED_AT, "idle", str(tmp_path / "now"),
        str(tmp_path / "moment"), **look,
    )  # fmt: skip
    folder = tmp_path / "report"

    def is_recorded() -> bool:
        job.run("report", "--output", str(folder), code=None, **look)
        return (folder / "calls.json").exists()

    job.wait_until(is_recorded, "some steps")
    running.terminate()
    running.wait(300)
    found = load(folder)
    names = {f"grad{number}" for number in range(4)}
    assert {call.name for call in found.calls} == names
    assert {call.bytes for call in found.calls} == {(1 << 16, 1 << 16)}
    assert found.steps > 1 and found.seconds > 0.01  # each step sleeps for so long
    gaps = [0.0] * found.steps
    for gap, _, call in found.ranks[0]:
        gaps[bisect.bisect_right(found.starts, call) - 1] += gap
    computed = statistics.median(gaps)
    assert 0.009 < computed <= 1.1 * found.seconds

    trace = tmp_path / "trace.json"
    flags = ["--tcp", "-np", "3", "--timeline-filename", str(trace)]
    told = job.run("replay", str(folder), *flags, "--", "--json", "--passes", "1", **look)
    facts = json.loads(told.of(0)[0])
    assert facts["ranks"] == 3 and facts["steps"] == found.steps
    assert facts["step"] >= 0.009 and 0 <= facts["waiting"] < facts["step"]
    events = json.loads(trace.read_text())
    done = [event["args"]["tensor"] for event in events if "tensor" in event.get("args", {})]
    for name in names:
        assert done.count(f"allreduce.{name}") == 2 * found.steps

    quiet = job.run("replay", str(folder), "--tcp", "-np", "2", "--", "--compute", "0", **look)
    assert "replayed by 2 ranks: " in quiet.out and "recorded: " in quiet.out
    simulate = ["replay", str(folder), "--simulate", "--hosts", "64", "--gbits", "25"]
    facts = json.loads(job.run(*simulate, "--json").out)
    assert facts["ranks"] == 64 and facts["step"] > 0.9 * computed
    said = job.run(*simulate).out
    assert "predicted for 64 ranks on 64 hosts: " in said and "error: with links that" in said
    wrong = job.run("replay", str(tmp_path / "none"), "--simulate", code=1)
    assert wrong.err == f"horoaccrun replay: {tmp_path / 'none'}: No such file or directory\n"
