"""From the events of ranks to shares of time, the critical path, and advice."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from horoacc.launcher.flight_records import Call, Event, Plans, Record
from horoacc.launcher.look import report, shares
from horoacc.launcher.look.advice import findings
from horoacc.launcher.look.asking import Scope, View
from horoacc.launcher.look.table import picture, plain
from horoacc.launcher.look.trace import trace

STEPS, STEP = 40, 0.1  # seconds
NOW = 1000.0
SCOPE = Scope(seconds=10, events=10_000)

# A call of a step: its tensor, when each rank submits it, when it is agreed on and done, and since
# when each rank waits for it (None: it does not).
Step = Sequence[tuple[str, Sequence[float], float, float, Sequence[float | None]]]


def records(
    step: Step,
    counters: Mapping[str, int] | None = None,
    hosts: Sequence[str] = ("a", "a"),
    clocks: Sequence[float] = (0.0, 0.0),
) -> dict[int, Record]:
    """What ranks tell after some equal steps, the last of which is just over."""
    found = {}
    unlocks = {
        name.removeprefix("plan_unlocks_"): count
        for name, count in (counters or {}).items()
        if name.startswith("plan_unlocks_")
    }
    plans = Plans((counters or {}).get("plan_rounds", 0), unlocks)
    for rank, host in enumerate(hosts):
        events: list[Event] = []
        for number in range(STEPS):
            age = (STEPS - number) * STEP
            for tensor, queued, agreed, done, waits in step:
                collective = number * len(step) + 1 + [row[0] for row in step].index(tensor)
                since = waits[rank]
                waited = 0.0 if since is None else done - since
                events += [
                    Event("queued", tensor, age - queued[rank]),
                    Event("agreed", tensor, age - agreed, 0, collective),
                    Event("done", tensor, age - done, 0, collective, waited),
                ]
        events.sort(key=lambda event: -event.age)
        found[rank] = Record(
            rank, len(hosts), host, 100 + rank, NOW, "", "", (), tuple(events),
            clock=NOW + clocks[rank], flight_events=4096,
            host_ranks=tuple(r for r, other in enumerate(hosts) if other == host),
            counters={"arena_bytes": 0, "buckets": 0} if counters is None else counters,
            plans=plans,
        )  # fmt: skip
    return found


def view(of: Mapping[int, Record], **more: object) -> View:
    return View("job", len(of), of, {}, SCOPE, **more)  # type: ignore[arg-type]


# Rank 1 submits 50 ms after rank 0, in each step of 100 ms; 10 ms go into agreement, 20 into bytes.
LATE: Step = [("x", (0.0, 0.05), 0.06, 0.08, (0.01, 0.05))]
OVERLAPPED: Step = [("x", (0.0, 0.0), 0.01, 0.04, (None, None))]


def test_the_shares_of_time() -> None:
    done = shares.work(view(records(LATE)))
    assert done.step == pytest.approx(STEP, rel=0.02) and done.seconds == pytest.approx(2)
    first, second = done.shares[0], done.shares[1]
    assert first.waiting == {1: pytest.approx(0.4, abs=0.02)}
    for own in (first, second):
        assert own.negotiate == pytest.approx(0.1, abs=0.02)
        assert own.reduce == pytest.approx(0.2, abs=0.02)
    assert first.compute == pytest.approx(0.3, abs=0.02)
    assert second.compute == pytest.approx(0.7, abs=0.02) and not second.waiting
    assert done.slowest == 1
    assert shares.work(view(records(OVERLAPPED))).slowest is None


@pytest.mark.parametrize("clock", [0.0, 5e5, -999.0])
def test_hosts_with_clocks_of_their_own(clock: float) -> None:
    done = shares.work(view(records(LATE, hosts=("a", "b"), clocks=(0.0, clock))))
    assert done.shares[0].waiting == {1: pytest.approx(0.4, abs=0.02)}
    assert done.shares[1].compute == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize(("kind", "step"), [("allreduce", STEP), ("allgather", 0.0)])
def test_calls_without_names(kind: str, step: float) -> None:
    """Of DDP's buckets the pattern of sizes tells a step; FSDP's layers look alike."""
    of = records(OVERLAPPED * 3)
    for rank, record in of.items():
        names = [f"{kind}.noname.{at // 9 * 3 + at % 3}" for at in range(len(record.events))]
        events = [
            dataclasses.replace(event, tensor=name, kind=kind, bytes=(8, 8, 4)[at % 3])
            for at, (name, event) in enumerate(zip(names, record.events, strict=True))
        ]
        of[rank] = dataclasses.replace(record, events=tuple(events))
    assert shares.work(view(of)).step == pytest.approx(step)


def test_the_critical_path() -> None:
    path = shares.path(shares.work(view(records(LATE))))
    assert path.straggle == {1: pytest.approx(0.4, abs=0.02)}
    assert path.negotiate == pytest.approx(0.1, abs=0.02)
    assert path.reduce == pytest.approx(0.2, abs=0.02)
    assert path.compute == pytest.approx(0.3, abs=0.02)
    path = shares.path(shares.work(view(records([
        ("x", (0.0, 0.0), 0.01, 0.04, (0.03, 0.03))
    ]))))  # fmt: skip
    assert path.reduce == pytest.approx(0.1, abs=0.02)
    assert path.hidden == pytest.approx(0.3, abs=0.02)


SMALL: Step = [(f"x{k}", (0.005 * k,) * 2, 0.005 * k + 0.002, 0.005 * k + 0.004,
                (0.005 * k,) * 2) for k in range(16)]  # fmt: skip
LONG: Step = [("x", (0.0, 0.0), 0.001, 0.07, (0.0, 0.0))]
# The seconds between the two looks are one, that is ten steps.
CASES: dict[str, tuple[Step, tuple[str, ...], dict[str, int], str]] = {
    "straggler": (
        LATE, ("a", "a"), {},
        r"Straggler: 40\.\d ms of each step \(4\d%\) the others wait for rank 1, which is in "
        r"load \(x\.py:3\) and uses 4% of a processor\. Advice: it mostly sleeps",
    ),
    "link": (
        LONG, ("a", "b"), {"arena_bytes": 10**9},
        r"Link: 69\.\d ms of each step \(69%\) all ranks wait for reductions, 1\.45 GB of each "
        r"rank's tensors in a second of it\. Advice: compare the links by `horoaccrun doctor`",
    ),
    "reduction": (
        LONG, ("a", "a"), {"arena_bytes": 10**9},
        r"Reduction: .* all ranks wait for reductions.*Advice: reduce less often",
    ),
    "small": (
        SMALL, ("a", "a"), {"buckets": 160, "staged_bytes": 160 * 1024},
        r"Small tensors: 16 reductions a step of 1\.0 KiB each, and 6\d\.\d ms of each step "
        r".*Advice: submit them together",
    ),
    "large": (
        SMALL, ("a", "a"), {"buckets": 160, "window_bytes": 160 << 20}, "The critical path",
    ),
    "unlocked": (
        OVERLAPPED, ("a", "a"), {"plan_unlocks_wait": 3, "plan_unlocks_end": 1, "plan_rounds": 4},
        r"Unlocked rounds: Rank 0 left a locked plan of gradients 3 times because it waited .*"
        r" only 4 steps .*\. So did 1 more\. Advice: call `synchronize",
    ),
    "overlap": (
        LONG, ("a", "a"), {},
        r"No overlap: 70\.\d ms of each step \(70%\) the ranks wait for calls, and compute during "
        r"0%\. Advice: submit gradients while `backward\(\)` goes on",
    ),
    "nothing": (
        [("x", (0.0, 0.0), 0.001, 0.002, (0.0, 0.0))], ("a", "a"), {},
        r"The critical path of each step of 100\.0 ms: 98% compute(?s:.*)Nothing of it is slow",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_makes_steps_slow(case: str) -> None:
    step, hosts, grown, wanted = CASES[case]
    after = records(step, grown, hosts)
    before = {
        rank: dataclasses.replace(record, clock=NOW - 1, counters={})
        for rank, record in after.items()
    }
    looks = view(before), view(after, cpu={0: 0.9, 1: 0.04}, busy=frozenset({0}))
    done = shares.work(looks[1])
    text = "\n".join(findings(done, shares.path(done), *looks, {1: "load (x.py:3)"}))
    assert re.search(wanted, text), text
    others = [name for name in ("Straggler", "Link", "Small", "Unlocked") if f"{name}" in text]
    assert others in ([], [wanted.split(":")[0].split(" ")[0]]), text


def test_a_trace_of_all_ranks() -> None:
    twice: Step = [("x", (0.0, 0.0), 0.01, 0.04, (0.005, 0.03)), ("y", (0.02, 0.03), 0.05, 0.06,
                    (0.05, 0.05))]  # fmt: skip
    found = records(twice)
    events = trace(shares.work(view(found)), found)["traceEvents"]
    titles = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == {"rank 0 on a", "rank 1 on a"}
    lanes: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            end = round(event["ts"] + event["dur"], 3)
            lanes.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], -end, event["name"])
            )
    assert {lane for _, lane in lanes} == {0, 1, 2}
    for slices in lanes.values():
        open_: list[float] = []  # ends of the slices around
        for begin, minus_end, name in sorted(slices):
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or -minus_end <= open_[-1], (begin, name)
            open_.append(-minus_end)
    assert sum(name == "x" for _, _, name in lanes[0, 1]) == STEPS
    blocked = {name for _, _, name in lanes[0, 0]}
    assert blocked == {"negotiates", "reduces"}


def test_a_report_of_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = report.main([str(tmp_path), "--output", str(tmp_path / "out")])
    assert nothing == 1 and "there are no records" in capsys.readouterr().err
    for rank in range(2):
        said = {
            "format": 1, "rank": rank, "size": 2, "host": "a", "pid": 7, "time": 1e9,
            "clock": 50.0, "agreed": 4, "reason": "<told>", "calls": [], "stack": "",
            "events": [
                {"age": age - 0.01 * at, "what": what, "set": 0, "collective": 9 - age,
                 "tensor": "<x>", "detail": ""}
                for age in (3, 2, 1) for at, what in enumerate(("queued", "agreed", "done"))
            ],
        }  # fmt: skip
        (tmp_path / f"rank.{rank}.json").write_text(json.dumps(said))
    assert report.main([str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "No rank waited for another" in page and "&lt;told&gt;" in page and "<told>" not in page
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["name"] == "<x>"} == {0, 1}


def test_a_wait_that_goes_on() -> None:
    found = records(OVERLAPPED)
    call = Call("late", 0, (0, 1), 4.0, 0, (0,), (1,), True)
    more = dataclasses.replace(call, tensor="later", age=3.9)
    quiet = {
        rank: dataclasses.replace(
            record, calls=(more, call) if rank == 0 else (),
            events=tuple(dataclasses.replace(e, age=e.age + 4) for e in record.events),
        )
        for rank, record in found.items()
    }  # fmt: skip
    now = view(quiet, cpu={0: 0.0, 1: 1.0}, busy=frozenset({1}))
    (one,) = shares.late(now)
    assert (one.tensor, one.more, one.waiting, one.missing) == ("late", 1, (0,), (1,))
    assert shares.work(now).shares[0].waiting == {1: pytest.approx(1, abs=0.05)}
    text = plain(picture(now, None))
    assert "! oldest tensor: 'late' and 1 more, 4.0 s: rank 0 waits for rank 1" in text
    assert "no step for 4.1 s" in text
    assert re.search(r"^!  *1 +a +late 4\.0 s, computes", text, re.MULTILINE), text


def test_a_rank_that_says_little() -> None:
    """Before the first call, and with no events kept."""
    found = {0: Record(0, 1, "a", 7, NOW, "", "", (), (), clock=NOW)}
    text = plain(picture(view(found), None))
    assert "no steps seen" in text and re.search(r"^ +0 +a +runs +- ", text, re.MULTILINE), text
    done = shares.work(view(found))
    (line,) = findings(done, shares.path(done), view(found), view(found), {})
    assert "nothing to say" in line
