"""A rank that is stopped: reported, waited for, and in the end given up (rows 5 and 6)."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

from faulted_jobs import FaultedJob
from holdups import Holdups

# The fault matrix's bounds: from when a silence is to be reported until it is, and from a limit to
# the end.
REPORT_LATE_SECONDS, LATE_SECONDS = 1.0, 2.0
SILENCE, STOPPED = 5, 10  # the default, and how long the fault matrix stops a rank
LIMIT = 4
# Longer than ranks dial one that is out of reach, and some tries more.
UNREACHED = 38
SILENT = re.compile(r"rank 1 \(.*it is stopped.*\) has given no sign of life for (\d+) s")
AGAIN = "rank 1 gives signs of life again"


def _reported(job: FaultedJob) -> bool:
    return any(map(SILENT.search, job.warnings()))


def _reports(job: FaultedJob) -> int:
    """How often the silence was told of. (After it a machine that holds up the rank for so long
    makes another one.)"""
    lines = job.warnings()
    back = [place for place, line in enumerate(lines) if AGAIN in line]
    return sum(bool(SILENT.search(line)) for line in lines[: back[0] if back else None])


def _start_all(another: Callable[..., FaultedJob], **variables: str) -> list[FaultedJob]:
    """A job of each size for each phase, half of them as if on two hosts, and stops a rank of each.

    Of those in `shutdown` the other ranks leave.
    """
    jobs = []
    # Those that need the processors start last.
    for phase in ("shutdown", "idle", "negotiating", "collective"):
        for size, hosts in ((2, "1+1"), (4, "2+2")):
            simulated = (phase == "collective") == (size == 2)
            place = {"HOROACC_SIMULATED_HOSTS": hosts} if simulated else {}
            jobs.append(another(size, phase, 1, **variables | place))
    for job in jobs:
        job.await_phase()
    for job in jobs:
        job.err.clear()  # warnings from before, of the machine's load
        job.signal(1, signal.SIGSTOP)
    return jobs


def test_it_is_reported_and_goes_on(another: Callable[..., FaultedJob]) -> None:
    jobs = _start_all(another)
    with Holdups() as holdups:
        goes_on = time.monotonic() + STOPPED
        for job in jobs:
            if job.phase == "shutdown":  # no rank is left that waits for it
                job.wait_for(lambda job=job: len(job.told) == job.size - 1, "the others' end")
                continue
            job.wait_for(lambda job=job: _reported(job), "the report")
    for job in jobs:
        # By the warning rank's clock, in whole seconds.
        for seconds in [int(told[1]) for told in map(SILENT.search, job.warnings()) if told]:
            assert SILENCE <= seconds <= holdups.allow(SILENCE + REPORT_LATE_SECONDS), job.err
    time.sleep(max(0.0, goes_on - time.monotonic()))
    for job in jobs:
        job.signal(1, signal.SIGCONT)
    for job in jobs:
        if job.phase != "shutdown":
            job.wait_for(
                lambda job=job: any(AGAIN in line for line in job.warnings()), "the second report"
            )
        job.go.touch()
    for job in jobs:
        left_alone = job.phase == "shutdown"
        assert job.end() == (9 if left_alone else 0), (job.phase, job.told)
        assert sorted(job.told) == list(range(job.size))
        for rank, told in job.told.items():
            assert told.get("error") == ("Aborted" if left_alone and rank == 1 else None), told
        # Once, by any rank.
        assert _reports(job) == 1 or (left_alone and _reports(job) == 0), job.warnings()


def test_one_that_is_first_dialed_while_it_is_stopped(
    another: Callable[..., FaultedJob],
) -> None:
    """Between hosts: it has agreed on the first call, and stops before it looks for connections."""
    jobs = [
        another(
            size, "collective", size - 1,
            HOROACC_SIMULATED_HOSTS=hosts, HOROACC_ALGORITHM="canonical",
            HOROACC_FAULT=f"begin:{size - 1}:1:stop",
        )
        for size, hosts in ((2, "1+1"), (4, "1+1+1+1"))
    ]  # fmt: skip
    told = [re.compile(rf"rank {job.size - 1} \(.*\) has given no sign of life") for job in jobs]
    for job, silent in zip(jobs, told, strict=True):
        job.wait_for(lambda job=job, silent=silent: any(map(silent.search, job.err)), "the report")
    time.sleep(UNREACHED)
    for job in jobs:
        assert not job.pids and not job.told, job.err
        os.kill(job.coming[job.size - 1], signal.SIGCONT)
    for job in jobs:
        job.await_phase()
        job.go.touch()
    for job in jobs:
        assert job.end() == 0, (job.told, job.err)


def test_it_ends_the_job_at_the_limit(another: Callable[..., FaultedJob]) -> None:
    jobs = _start_all(
        another, HOROACC_HEARTBEAT_WARNING_SECONDS="0", HOROACC_HEARTBEAT_TIMEOUT_SECONDS=str(LIMIT)
    )
    stopped = time.monotonic_ns()
    with Holdups() as holdups:
        for job in jobs:
            if job.phase == "idle":  # a rank that calls nothing gets it with the next call
                job.wait_for(lambda job=job: any(" error: " in line for line in job.err), "its end")
                job.go.touch()
            job.wait_for(lambda job=job: len(job.told) == job.size - 1, "the survivors' end")
    for job in jobs:
        survivors = [told for rank, told in job.told.items() if rank != 1]
        assert len(survivors) == job.size - 1
        for told in survivors if job.phase != "shutdown" else []:
            # By the clock that all processes of the machine share.
            assert (told["at_ns"] - stopped) / 1e9 < holdups.allow(LIMIT + LATE_SECONDS), told
    for job in jobs:
        # The one that was stopped is told as well, once it can listen.
        job.go.touch()
        job.signal(1, signal.SIGCONT)
    for job in jobs:
        assert job.end() == 9, (job.phase, job.told)
        assert sorted(job.told) == list(range(job.size)), (job.phase, job.told)
        for rank, told in job.told.items():
            if job.phase == "shutdown":
                assert told.get("error") == ("Aborted" if rank == 1 else None), told
                continue
            if rank == 1 and told["error"] == "PeerLost":
                continue  # the others have left meanwhile, which it learns at the same time
            assert (told["error"], told["culprit"]) == ("Timeout", 1), told
            assert told["host"] == os.uname().nodename and told["hint"], told
            assert SILENT.search(told["text"]), told


def test_one_that_stops_while_it_holds_a_sets_lock(another: Callable[..., FaultedJob]) -> None:
    """The others, which wait for the lock, show that they live and end the job at the limit."""
    jobs = [
        another(
            4, "collective", 0,
            HOROACC_FAULT="decide:0:9:stop", HOROACC_SIMULATED_HOSTS=hosts,
            HOROACC_HEARTBEAT_WARNING_SECONDS="0", HOROACC_HEARTBEAT_TIMEOUT_SECONDS=str(LIMIT),
        )
        for hosts in ("", "2+2")
    ]  # fmt: skip
    for job in jobs:
        job.wait_for(lambda job=job: len(job.told) == job.size - 1, "the survivors' end")
        for told in job.told.values():
            assert (told["error"], told["culprit"]) == ("Timeout", 0), told
        os.kill(job.coming[0], signal.SIGCONT)
    for job in jobs:
        assert job.end() == 9, (job.told, job.err)
