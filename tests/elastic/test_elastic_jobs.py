"""Elastic jobs of real processes: ranks die, hang, come and go, and the training goes on."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from typing import Any

import pytest
from elastic_jobs import Elastic, alive, pids
from launcher_jobs import Job


def at(place: str, batch: int, rank: int, do: str = "kill") -> dict[str, Any]:
    return {"at": place, "batch": batch, "rank": rank, "do": do}


@pytest.mark.parametrize("place", ["begin", "step", "commit"])
@pytest.mark.parametrize(
    ("size", "least", "dead"),
    [(2, 1, [0]), (2, 1, [1]), (3, 2, [0]), (4, 2, [0, 2]), (4, 1, [1, 2, 3])],
)
def test_the_others_go_on_in_their_processes(
    elastic: Elastic, size: int, least: int, dead: list[int], place: str
) -> None:
    elastic.plan = [at(place, 4, rank) | {"together": True} for rank in dead]
    result = elastic.run("-np", str(size), "--min-np", str(least), "--failures-per-host", "1")
    sizes = elastic.check()
    assert sizes[0] == size and sizes[-1] == size - len(dead)  # the host is left out: no new ones
    first, last = pids(elastic.steps(), 1), pids(elastic.steps(), len(sizes))
    assert last < first and len(last) == size - len(dead)
    assert "killed by SIGKILL" in result.err and "they met again after" in result.err


def test_a_dead_rank_is_replaced_on_its_host(elastic: Elastic) -> None:
    elastic.plan, elastic.batches = [at("begin", 4, 0), at("step", 30, 1)], 60
    folder = elastic.folder / "flight"
    elastic.run("-np", "3", "--min-np", "2", "--flight-dir", str(folder), LAST_SIZE="3")
    told = elastic.job.run("explain", str(folder)).out
    assert "Rank 0 on localhost: killed by SIGKILL." in told
    assert re.search(r"Epoch 2: 2 ranks \(2 on localhost\), 0 new, 1 left; the others waited", told)
    assert "and went back to their last commit: ObjectState does not know which steps" in told
    sizes = elastic.check()
    assert sizes[0] == sizes[-1] == 3 and 2 in sizes
    ends = [line for line in elastic.lines() if line["what"] == "end"]
    assert [sorted(line["rank"] for line in ends)] == [[0, 1, 2]]


@pytest.mark.parametrize("at_once", [True, False])
def test_workers_that_die_before_init_hold_nobody_up(elastic: Elastic, at_once: bool) -> None:
    elastic.plan = [{"worker": 1, "do": "kill"}]
    if not at_once:  # the worker that replaces one
        elastic.plan = [at("begin", 3, 1), {"worker": 3, "do": "7"}]
    elastic.run("-np", "3", "--min-np", "2", LAST_SIZE="3")
    assert elastic.check()[-1] == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_while_the_ranks_meet_again(elastic: Elastic, rank: int) -> None:
    elastic.plan = [at("begin", 4, 2), {"at": "reset", "rank": rank, "do": "kill"}]
    elastic.run("-np", "4", "--min-np", "1", "--failures-per-host", "2")
    assert elastic.check()[-1] in (2, 3)  # the first was replaced, in time or not
    assert {"at": "reset", "rank": rank}.items() <= elastic.lines_of("kill")[-1].items()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_dies_while_others_wait_in_join(elastic: Elastic, rank: int) -> None:
    elastic.plan, elastic.batches = [{"at": "join", "rank": rank, "do": "kill"}], 3
    elastic.run("-np", "3", "--min-np", "2", "--failures-per-host", "1", JOIN="1")
    assert elastic.check() == [3]
    assert [line["size"] for line in elastic.lines_of("joined")] == [2, 2]


def test_a_rank_that_hangs_is_killed(elastic: Elastic) -> None:
    elastic.plan = [at("begin", 4, 1, "stop")]
    result = elastic.run(
        "-np", "3", "--min-np", "2", "--failures-per-host", "1",
        "--heartbeat-timeout-seconds", "2",
    )  # fmt: skip
    assert elastic.check()[-1] == 2
    assert "rank 1 does not come back after an error that the others found in it" in result.err


@pytest.mark.parametrize("place", ["begin", "reset"])
def test_a_rank_that_hangs_in_python_is_killed(elastic: Elastic, place: str) -> None:
    """Its engine's heartbeats go on: in a step, and where the ranks have met again."""
    asleep = {"rank": 1, "do": "sleep", "seconds": 1000}
    elastic.plan = [at("begin", 4, 1) | asleep]
    if place == "reset":
        elastic.plan = [at("begin", 4, 2), {"at": "reset"} | asleep]
    result = elastic.run(
        "-np", "3", "--min-np", "1", "--failures-per-host", str(len(elastic.plan)),
        "--stall-check-warning-time-seconds", "1", "--stall-check-shutdown-time-seconds", "2",
    )  # fmt: skip
    elastic.check()
    assert "rank 1 does not come back after an error that the others found in it" in result.err
    (hung,) = elastic.lines_of("sleep")
    last = max(line["time"] for line in elastic.steps() if line["pid"] == hung["pid"])
    assert last < hung["time"] < elastic.steps()[-1]["time"]


@pytest.mark.parametrize(
    ("flags", "environ", "seconds"),
    [
        ([], {}, 600.0),
        (["--heartbeat-timeout-seconds", "5"], {}, 600.0),
        (["--heartbeat-timeout-seconds", "900"], {}, 900.0),
        (["--heartbeat-timeout-seconds", "0"], {}, 0.0),
        (["--stall-check-warning-time-seconds", "1000"], {}, 1000.0),
        (["--stall-check-shutdown-time-seconds", "0"], {}, 0.0),
        ([], {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "70"}, 70.0),
    ],
)
def test_how_long_the_ranks_wait_for_one_that_hangs(
    elastic: Elastic, flags: list[str], environ: dict[str, str], seconds: float
) -> None:
    """Without a word of the user's a rank that hangs is not waited for for ever."""
    program = (
        "import os; from horoacc import settings; "
        "print('waits', settings.read(os.environ)['stall_shutdown_seconds'])"
    )
    command = [sys.executable, "-c", program]
    result = elastic.job.run("-np", "1", "--min-np", "1", *flags, *command, code=1, **environ)
    assert f"waits {seconds}" in result.out  # it never calls init()


def test_an_exception_of_one_rank_is_a_failure_of_it_alone(elastic: Elastic) -> None:
    elastic.plan = [at("begin", 4, 1, "raise")]
    result = elastic.run("-np", "2", "--min-np", "1", "--failures-per-host", "1")
    assert elastic.check() == [2, 1]
    assert "RuntimeError: the plan's error at" in result.err


def test_an_exception_of_every_rank_ends_the_job(elastic: Elastic) -> None:
    elastic.plan = [{"at": "begin", "rank": r, "batch": 4, "do": "raise"} for r in (0, 1)]
    elastic.plan *= 3
    result = elastic.run("-np", "2", "--min-np", "1", code=1)
    assert "nothing is started on localhost any more" in result.err
    assert "RuntimeError: the plan's error at" in result.err


def test_too_few_ranks_are_waited_for_and_then_named(elastic: Elastic) -> None:
    elastic.plan, elastic.hosts = [at("begin", 4, 1)], "localhost:2"
    begun = time.monotonic()
    result = elastic.run(
        "-np", "2", "--min-np", "2", "--elastic-timeout", "3", "--failures-per-host", "1",
        code=137,
    )  # fmt: skip
    assert time.monotonic() - begun > 3
    assert "1 of at least 2 ranks are there" in result.err
    assert "after failures nothing is started on localhost any more" in result.err
    assert "--elastic-timeout" in result.err


def test_a_process_that_does_not_come_to_init_is_killed(elastic: Elastic) -> None:
    """While it starts the job does not lack ranks; but the others wait for it."""
    elastic.plan = [{"worker": 1, "do": "sleep", "seconds": 100}]
    flags = ("-np", "2", "--min-np", "2", "--elastic-timeout", "1", "--start-timeout", "4")
    result = elastic.run(*flags)
    assert "a process on localhost has not come to init(): it is killed" in result.err
    assert elastic.check() == [2]


def test_the_reset_limit(elastic: Elastic) -> None:
    elastic.plan, elastic.batches = [at("begin", b, 1) for b in (3, 40)], 80
    flags = ("-np", "3", "--min-np", "2", "--reset-limit")
    result = elastic.run(*flags, "2", code=137)
    assert "number of resets during elastic job exceeded limit: 2 (--reset-limit)" in result.err


def test_hosts_come_and_go(elastic: Elastic) -> None:
    elastic.hosts, elastic.batches, elastic.seconds = "localhost:2", 400, 0.05
    process = elastic.job.start(*elastic.arguments("-np", "2", "--min-np", "1"))
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    elastic.set_hosts("localhost:2,127.0.0.1:1")
    elastic.job.wait_until(lambda: elastic.steps()[-1]["size"] == 3, "growth")
    oldest = pids(elastic.steps(), 1)
    elastic.set_hosts("127.0.0.1:1")
    elastic.job.wait_until(lambda: elastic.steps()[-1]["size"] == 1, "shrinking")
    elastic.job.wait_until(lambda: not any(map(alive, oldest)), "the end of those removed")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert elastic.check() == [2, 3, 1]
    assert pids(elastic.steps(), 3) == pids(elastic.steps(), 2) - oldest
    elastic.job.expect_nothing_left()


def _agents(job: Job) -> dict[str, int]:
    """By host. An agent's watchdog, a child of it, has the same command line."""
    lines = sorted(job.alive(), reverse=True)
    return {
        line.split()[-1]: pid for pid, line in lines if "horoacc.launcher.elastic.agent" in line
    }


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_host_is_lost_or_asked_to_end(elastic: Elastic, number: int) -> None:
    elastic.batches, elastic.seconds = 100, 0.05
    flags = ("-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2")
    process = elastic.job.start(*elastic.arguments(*flags))
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    os.kill(_agents(elastic.job)["127.0.0.1"], number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert elastic.check() == [4, 2]
    told = "host 127.0.0.1 is lost" if number == signal.SIGKILL else "127.0.0.1 is asked to end"
    assert told in err.decode()
    lost = [line for line in elastic.steps() if line["epoch"] == 1 and line["rank"] >= 2]
    if number == signal.SIGTERM:  # no step was interrupted
        assert "died" not in err.decode()
        assert max(line["batch"] for line in lost) + 1 == min(
            line["batch"] for line in elastic.steps() if line["epoch"] == 2
        )
    elastic.job.expect_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_coordinator_ends_the_job(elastic: Elastic, number: int) -> None:
    elastic.batches, elastic.seconds = 2000, 0.1
    process = elastic.job.start(*elastic.arguments("-np", "2", "--min-np", "1"))
    elastic.job.wait_until(lambda: elastic.reached(3), "the start")
    process.send_signal(number)
    with contextlib.suppress(ValueError):
        process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    elastic.job.expect_nothing_left()


def test_no_command_is_named(elastic: Elastic) -> None:
    result = elastic.job.run("-np", "2", "--min-np", "1", "./no-such-program", code=127)
    assert "cannot start './no-such-program'" in result.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--mpi"], "an elastic job cannot use MPI"),
        (["--control", "mpi"], "an elastic job cannot use MPI"),
        (["--max-np", "1", "--min-np", "2"], "max_np is 1, which is below min_np, 2"),
        (["-H", "localhost:1", "--min-np", "2"], "has 1 slots"),
        (["--blacklist-cooldown-range", "5", "2"], "blacklist_cooldown_range must be two numbers"),
    ],
)
def test_flags_that_cannot_be(elastic: Elastic, flags: list[str], words: str) -> None:
    result = elastic.job.run("-np", "2", "--min-np", "1", *flags, "true", code=None)
    assert result.code in (1, 2) and words in result.err, result.err
