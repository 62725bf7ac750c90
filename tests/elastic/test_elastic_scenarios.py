"""The scenarios of Horovod's own elastic tests, on hosts that are names of this one (README.md)."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from typing import Any

import pytest
from elastic_jobs import WORKER, Elastic
from launcher_jobs import Result

import horoacc
from horoacc.launcher.elastic.membership import ADDED, REMOVED, Limits, Membership
from horoacc.launcher.hosts import Host

EPOCHS, BATCHES = 3, 4
ONE, OTHER = "localhost", "127.0.0.1"
TWO_HOSTS = f"{ONE}:2,{OTHER}:2"
ONCE = ("--failures-per-host", "1")  # as in Horovod, where one failure blacklists a host


def prepare(
    elastic: Elastic, *flags: str, framework: str = "", epochs: int = EPOCHS, **options: Any
) -> list[str]:
    """horoaccrun's command line."""
    for package in {"keras": ["keras", "tensorflow"], "": []}.get(framework, [framework]):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    elastic.batches = epochs
    (elastic.folder / "options").write_text(json.dumps({"framework": framework, **options}))
    program = str(WORKER.with_name("scenario_worker.py"))
    return [*elastic.arguments(*flags, program=program)[:-1], str(BATCHES)]


def run(elastic: Elastic, *flags: str, code: int | None = 0, **options: Any) -> Result:
    command = prepare(elastic, *flags, **options)
    result = elastic.job.run(
        *command, code=code, TF_CPP_MIN_LOG_LEVEL="2", KERAS_BACKEND="tensorflow"
    )
    elastic.job.expect_nothing_left()
    if code == 0:
        check_weights(elastic)
    return result


def check_weights(elastic: Elastic) -> None:
    """Each step counts once."""
    ends = elastic.lines_of("end")
    assert ends and {end["weight"] for end in ends} == {-float(elastic.batches * BATCHES)}, ends


def epochs(elastic: Elastic) -> list[tuple[str, int]]:
    """Rank 0's host and the number of ranks, at the end of each epoch of the training.

    An epoch whose end some ranks saw before an error has another end, which counts.
    """
    found: dict[int, tuple[str, int]] = {}
    for line in elastic.lines_of("epoch"):
        if line["rank"] == 0:
            found[line["epoch"]] = (line["host"], line["size"])
    assert list(found) == list(range(elastic.batches))
    return list(found.values())


def exits(epoch: int, *ranks: int, do: str = "raise") -> list[dict[str, Any]]:
    """Ranks end at the first batch of an epoch."""
    step = {"epoch": epoch, "batch": 0, "do": do, "together": len(ranks) > 1}
    return [step | {"rank": rank} for rank in ranks]


@pytest.mark.parametrize(
    ("framework", "slots"),
    [("", 2), ("", 1), ("torch", 2), ("tensorflow", 1), ("keras", 1)],
)
def test_hosts_added_and_removed(elastic: Elastic, framework: str, slots: int) -> None:
    elastic.hosts = f"{ONE}:{slots}"
    run(
        elastic, "-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots),
        framework=framework, sizes={"1": 2 * slots, "2": slots},
        hosts={"1": f"{ONE}:{slots},{OTHER}:{slots}", "2": f"{OTHER}:{slots}"},
    )  # fmt: skip
    assert epochs(elastic) == [(ONE, slots), (ONE, 2 * slots), (OTHER, slots)]
    lines = elastic.lines_of("epoch")
    assert {(line["epoch"], line["membership"]) for line in lines} == {(0, 1), (1, 2), (2, 3)}
    last = {line["pid"] for line in lines if line["epoch"] == 2}
    assert last == {line["pid"] for line in lines if line["epoch"] == 1 and line["host"] == OTHER}
    # Every rank hears of it at the same check, and only growth shares the state.
    news = [(line["epoch"], line["size"], line["skip_sync"]) for line in elastic.lines_of("news")]
    assert sorted(news) == [(1, slots, False)] * slots + [(2, 2 * slots, True)] * 2 * slots


@pytest.mark.parametrize("do", ["raise", "kill"])
@pytest.mark.parametrize("scales", [True, False])
def test_a_single_rank_fails(elastic: Elastic, scales: bool, do: str) -> None:
    """With a discovery script, and with fixed hosts: fault tolerance without scaling."""
    elastic.plan, elastic.hosts = exits(1, 0, do=do), TWO_HOSTS if scales else ""
    flags = [] if scales else ["-H", TWO_HOSTS]
    run(elastic, *flags, "-np", "4", "--min-np", "2", *ONCE, framework="torch" if scales else "")
    # Its host gets no more ranks; the one that it has stays, which Horovod would end. Rank 0 is one
    # that had come farthest by then, on either host.
    assert [size for _, size in epochs(elastic)] == [4, 3, 3]
    lines = elastic.lines_of("epoch")
    assert {line["pid"] for line in lines if line["epoch"] == 2} < {
        line["pid"] for line in lines if line["epoch"] == 0
    }


@pytest.mark.parametrize("framework", ["", "tensorflow"])
def test_all_ranks_fail(elastic: Elastic, framework: str) -> None:
    elastic.plan, elastic.hosts = exits(1, *range(4)), TWO_HOSTS
    flags = ("-np", "4", "--min-np", "2", *ONCE)
    result = run(elastic, *flags, code=1, framework=framework)
    assert f"nothing is started on {ONE}, {OTHER} any more" in result.err
    assert "RuntimeError: the plan's error at" in result.err


def test_all_hosts_are_excluded_and_the_other_ranks_go_on(elastic: Elastic) -> None:
    elastic.plan, elastic.hosts = exits(1, 0, 2), TWO_HOSTS
    run(elastic, "-np", "4", "--min-np", "2", *ONCE)
    assert [size for _, size in epochs(elastic)] == [4, 2, 2]


@pytest.mark.parametrize(
    ("framework", "dead"),
    [("", (0,)), ("torch", (0, 2)), ("tensorflow", (0,)), ("keras", (0,)), ("keras", (0, 2))],
)
def test_too_few_are_left(elastic: Elastic, framework: str, dead: tuple[int, ...]) -> None:
    """All hosts excluded, or too few left until the time-out: Horovod skips both for Keras."""
    elastic.plan, elastic.hosts = exits(1, *dead), TWO_HOSTS
    flags = ("-np", "4", "--min-np", "4", *ONCE, "--elastic-timeout", "2")
    result = run(elastic, *flags, code=1, framework=framework)
    assert f"{4 - len(dead)} of at least 4 ranks are there" in result.err
    left_out = [ONE, OTHER][: len(dead)]
    assert f"nothing is started on {', '.join(left_out)} any more" in result.err
    assert "--elastic-timeout" in result.err
    assert {line["epoch"] for line in elastic.lines_of("epoch")} == {0}


@pytest.mark.parametrize("limit", [1, 2])
def test_the_reset_limit(elastic: Elastic, limit: int) -> None:
    elastic.hosts = f"{ONE}:2"
    result = run(
        elastic, "-np", "2", "--min-np", "2", "--max-np", "4", "--reset-limit", str(limit),
        code=0 if limit == 2 else None,
        hosts={"1": TWO_HOSTS, "2": f"{OTHER}:2"}, sizes={"1": 4, "2": 2},
    )  # fmt: skip
    if limit == 2:
        assert [size for _, size in epochs(elastic)] == [2, 4, 2]
    else:
        assert result.code != 0 and "elastic job exceeded limit: 1" in result.err


def test_a_host_that_failed_comes_back_later_each_time(elastic: Elastic) -> None:
    elastic.hosts, elastic.plan = TWO_HOSTS, [*exits(1, 3), *exits(3, 3)]
    run(
        elastic, "-np", "4", "--min-np", "2", "--blacklist-cooldown-range", "1", "4", epochs=5,
        sizes={"3": 4, "4": 4},
    )  # fmt: skip
    assert [size for _, size in epochs(elastic)] == [4, 3, 3, 4, 4]
    deaths = [line["time"] for line in elastic.lines_of("raise")]
    started = {line["started"] for line in elastic.lines_of("epoch")}
    back = [min(began for began in started if began > death) - death for death in deaths]
    assert back[0] >= 0.75 and back[1] >= 1.5, back  # `test_a_cooldown_doubles` is exact


def test_the_job_begins_once_there_are_slots_enough(elastic: Elastic) -> None:
    elastic.hosts = f"{ONE}:1"
    job = elastic.job.start(*prepare(elastic, "-np", "3", "--min-np", "3"))
    time.sleep(2.5)
    assert not elastic.lines()
    elastic.set_hosts(f"{ONE}:1,{OTHER}:2")
    _, err = job.communicate(timeout=300)
    assert job.returncode == 0, err
    assert epochs(elastic) == [(ONE, 3)] * 3
    (first,) = [line for line in elastic.lines_of("epoch")[:3] if line["rank"] == 2]
    assert (first["local"], first["cross"], first["host"]) == ([1, 2], [0, 1], OTHER)
    check_weights(elastic)


def test_fewer_hosts_than_needed_and_then_others(elastic: Elastic) -> None:
    """Below the minimum the ranks that may stay wait, and keep the state."""
    elastic.hosts = TWO_HOSTS
    job = elastic.job.start(
        *prepare(elastic, "-np", "4", "--min-np", "3", hosts={"1": f"{OTHER}:2"}, sizes={"1": 3})
    )
    elastic.job.wait_until(lambda: len(elastic.lines_of("news")) == 4, "the news")
    time.sleep(1.5)
    elastic.set_hosts(f"{OTHER}:2,127.0.0.2:1")
    _, err = job.communicate(timeout=300)
    assert job.returncode == 0, err
    assert epochs(elastic) == [(ONE, 4), (OTHER, 3), (OTHER, 3)]
    check_weights(elastic)


def test_hosts_beyond_the_maximum_change_nothing(elastic: Elastic) -> None:
    elastic.hosts = f"{ONE}:2"
    result = run(
        elastic, "-np", "2", "--min-np", "2", "--max-np", "2", seconds={"1": 1.3, "2": 1.3},
        hosts={"1": f"{ONE}:2,{OTHER}:2", "2": f"{ONE}:2"},
    )  # fmt: skip
    assert epochs(elastic) == [(ONE, 2)] * 3
    assert {line["membership"] for line in elastic.lines_of("epoch")} == {1}
    assert not elastic.lines_of("news") and "epoch 2" not in result.err


def test_hosts_take_turns(elastic: Elastic) -> None:
    """Of three hosts each epoch has two others; the state goes from one to the next."""
    names = [f"127.0.0.{number}" for number in (1, 2, 3)]
    pairs = [[names[n % 3], names[(n + 1) % 3]] for n in range(6)]
    texts = [",".join(f"{name}:1" for name in sorted(pair)) for pair in pairs]
    elastic.hosts = texts[0]
    run(
        elastic, "-np", "2", "--min-np", "1", epochs=6,
        hosts=dict(enumerate(texts)), where=dict(enumerate(pairs)),
    )  # fmt: skip
    hosts = [
        {line["host"] for line in elastic.lines_of("epoch") if line["epoch"] == n} for n in range(6)
    ]
    assert hosts == [set(pair) for pair in pairs]


def test_discovery_that_finds_no_host_any_more(elastic: Elastic) -> None:
    """The last that have the state go on: nobody else has it."""
    elastic.hosts = f"{ONE}:2"
    run(elastic, "-np", "2", "--min-np", "2", hosts={"1": ""}, seconds={"1": 1.3})
    assert epochs(elastic) == [(ONE, 2)] * 3


@pytest.mark.parametrize("recovers", [False, True])
def test_discovery_that_fails_from_the_first_time_on(elastic: Elastic, recovers: bool) -> None:
    elastic.hosts = "no host: at all"
    command = prepare(elastic, "-np", "2", "--min-np", "2", "--elastic-timeout", "3")
    job = elastic.job.start(*command)
    assert job.stderr is not None
    told = job.stderr.readline()
    if recovers:
        elastic.set_hosts(f"{ONE}:2")
    err = told + job.communicate(timeout=300)[1]
    assert b"printed 'no host: at all'" in err
    if recovers:
        assert job.returncode == 0 and epochs(elastic) == [(ONE, 2)] * 3
    else:
        assert job.returncode == 1 and b"0 of at least 2 ranks are there" in err, err


def test_one_that_succeeds_ends_the_job(elastic: Elastic) -> None:
    elastic.plan, elastic.hosts = exits(1, 0, do="0"), TWO_HOSTS
    result = run(elastic, "-np", "4", "--min-np", "2", code=None)
    assert not elastic.lines_of("end"), result
    assert {line["epoch"] for line in elastic.lines_of("epoch")} == {0}
    assert result.code == 0, result


@pytest.mark.parametrize("way", ["hosts", "script"])
def test_a_function_without_a_state(elastic: Elastic, way: str) -> None:
    """`run()` with the limits of an elastic job, for a function that only looks at its place."""

    def place() -> tuple[int, int]:
        import os

        return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])

    given: dict[str, str] = {"hosts": TWO_HOSTS}
    if way == "script":
        script = elastic.folder / "discover"
        script.write_text(f"#!/bin/sh\necho {ONE}:2\necho {OTHER}:2\n")
        script.chmod(0o755)
        given = {"host_discovery_script": str(script)}
    found = horoacc.run(place, num_proc=2, min_num_proc=2, max_num_proc=2, **given)
    assert found == [(0, 2), (1, 2)]


def test_what_is_told_of_a_change_of_hosts() -> None:
    membership = Membership(Limits(1, 9.0))
    found = [
        ({"a": 2}, ADDED),
        ({"a": 2, "b": 2}, ADDED),
        ({"b": 2}, REMOVED),
        ({"b": 1, "c": 1}, ADDED | REMOVED),
        ({"b": 1, "c": 1}, 0),
    ]
    for hosts, change in found:
        assert membership.set_hosts([Host(name, slots) for name, slots in hosts.items()]) == change


def test_the_second_host_fails_before_the_ranks_have_met(elastic: Elastic) -> None:
    elastic.plan = [{"worker": number, "do": "7"} for number in (2, 3)]
    run(elastic, "-H", TWO_HOSTS, "-np", "4", "--min-np", "2", *ONCE)
    assert epochs(elastic) == [(ONE, 2)] * 3
    for line in elastic.lines_of("epoch"):
        assert (line["local"], line["cross"]) == ([line["rank"], 2], [0, 1])


def test_the_table_names_tests_that_there_are() -> None:
    folder = WORKER.parent
    table = (folder / "README.md").read_text().partition("## Horovod's scenarios")[2]
    modules = [*folder.glob("test_*.py"), *folder.parent.glob("ranks/test_elastic*.py")]
    there = {name for path in modules for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = set(re.findall(r"`(test_\w+)`", table))
    assert len(named) > 20 and named <= there, named - there
