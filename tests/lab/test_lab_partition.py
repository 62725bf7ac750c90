"""Networks that are slow, flap, or fall apart (rows 15 to 18), with each rank on a host of its own.

Several jobs share the hosts, and so each network fault: of four ranks in every phase, and of two.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdups import Holdups
from launcher_jobs import Job
from linked_ranks import LinkedRanks

from benchmarks.lab import Host, Laboratory, Network

Build = Callable[[Network], Laboratory]
# Seconds after which a host counts as lost here, and the fault matrix's bounds: until all know, and
# from the end of an outage until the next step.
HOST_TIMEOUT, NOTICE_SECONDS, RESUME_SECONDS = 5, 15.0, 5.0
# For how long a slow network is to raise no false alarm; after which a rank that is stopped is told
# of, at the latest; for how long a host may be silent if nobody has set that, and how many bytes a
# rank of two has to send for twice as long.
QUIET_SECONDS, REPORT_SECONDS = 60.0, 6
SLOW = Network(hosts=4, rate=10e6)
SILENT_HOST = 12
LARGE_BYTES = 2 * SILENT_HOST * 10_000_000 // 8 + (1 << 20)
SILENT, AGAIN = "has given no sign of life for", "gives signs of life again"
SILENCE = "pfifo limit 0"  # a queue that drops every packet
# By size and phase, and where each has its rendezvous; those that need the processors come last.
JOBS = {
    key: 4711 + place
    for place, key in enumerate(
        [(4, "shutdown"), (4, "idle"), (4, "negotiating"), (4, "collective"), (2, "collective")]
    )
}


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[LinkedRanks]:
    """Two ranks, not started yet; the test puts them on hosts."""
    ranks = LinkedRanks(Job(), tmp_path)
    yield ranks
    ranks.kill()


@pytest.fixture
def every(tmp_path: Path) -> Iterator[dict[tuple[int, str], LinkedRanks]]:
    """Jobs in each phase, not started yet."""
    jobs = {}
    for size, phase in JOBS:
        folder = tmp_path / f"{phase}{size}"
        folder.mkdir()
        jobs[size, phase] = LinkedRanks(Job(), folder, size)
    yield jobs
    for job in jobs.values():
        job.kill()


def _launch(ranks: LinkedRanks, hosts: list[Host], port: int = 4711, **variables: str) -> None:
    for rank, host in enumerate(hosts):
        ranks.start(
            rank, f"{hosts[0].addresses[0]}:{port}", tuple(host.command([])),
            **{"HOROACC_SIMULATED_HOSTS": ""} | variables,
        )  # fmt: skip


def _start(ranks: LinkedRanks, lab: Laboratory) -> None:
    _launch(ranks, [lab.hosts["h1"], lab.hosts["h2"]])
    ranks.await_start()


def _start_every(
    jobs: dict[tuple[int, str], LinkedRanks], lab: Laboratory, **variables: str
) -> list[Host]:
    """Returns once each job is in its phase: those that are to leave call nothing."""
    hosts = [lab.hosts[f"h{n}"] for n in range(1, 5)]
    for (size, phase), job in jobs.items():
        # Two ranks are on the first and on the last host.
        places = hosts if size == 4 else [hosts[0], hosts[3]]
        _launch(job, places, JOBS[size, phase], **variables)
    for (_, phase), job in jobs.items():
        job.await_start()
        job.enter("idle" if phase == "shutdown" else phase)
    return hosts


def _shut_up(host: Host) -> None:
    host.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *SILENCE.split()])


def _let_speak(host: Host) -> None:
    host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])


def _misdirect(host: Host, others: list[Host]) -> None:
    """Its packets to them leave it and reach no host."""
    for other in others:
        host.run(
            ["ip", "neigh", "replace", other.addresses[0], "lladdr", "02:00:00:00:99:99",
             "dev", "eth0", "nud", "permanent"]
        )  # fmt: skip


def _down(host: Host) -> None:
    host.run(["ip", "link", "set", "eth0", "down"])


def _up(host: Host) -> None:
    host.run(["ip", "link", "set", "eth0", "up"])
    host.run(["ip", "route", "replace", "10.77.0.0/24", "dev", "eth0", "src", host.addresses[0]])


def _expect_lost(job: LinkedRanks, phase: str, began: float, holdups: Holdups) -> None:
    """Each rank names another one, in time by the clock that all processes of the machine share,
    and none goes on."""
    if phase == "shutdown":  # a rank that leaves waits for no answer
        return job.end(0, 9)
    if phase == "idle":  # a rank that calls nothing gets it as well
        job.wait_for(lambda: job.logged(" error: ") > 0, "the end in the log")
    job.resume()
    errors = job.await_errors()
    steps = {rank: job.step_of(rank) for rank in errors}
    for rank, said in errors.items():
        assert said["error"] == "PeerLost" and said["culprit"] in range(job.size), (rank, said)
        assert "lost the " in said["text"] and "link" in said["text"], said
        took = said["time"] - began
        assert took < holdups.allow(NOTICE_SECONDS), (phase, rank, took, said)
        print(f"{phase}: rank {rank} noticed after {took:.1f} s")
    assert any(said["culprit"] != rank for rank, said in errors.items())
    job.end(9)
    assert steps == {rank: job.step_of(rank) for rank in errors}


def _expect_no_warnings(job: LinkedRanks) -> None:
    assert not [line for one in job.ranks.values() for line in one.warnings()]


def test_a_slow_link_is_no_death(build: Build, every: dict[tuple[int, str], LinkedRanks]) -> None:
    """10 Mbit/s for all that a host sends. Each call of two ranks fills their hosts' links for
    twice as long as a host may be silent, the signs of life of jobs of four go over the same links,
    and of one of those a rank is stopped, for longer than that as well.
    """
    lab = build(SLOW)
    large = every[2, "collective"]
    large.elements = LARGE_BYTES // 4
    jobs = {key: every[key] for key in ((4, "idle"), (4, "negotiating"), (4, "collective"))}
    variables = {"HOROACC_STALL_CHECK_DISABLE": "1"}  # one rank lets the others wait for as long
    # Two full queues delay a heartbeat and its answer by 3.4 s; TCP repeats a dropped one after the
    # time of the default warning.
    patient = variables | {"HOROACC_HEARTBEAT_WARNING_SECONDS": "10"}
    stopped = jobs.pop((4, "idle"))
    hosts = _start_every({(4, "idle"): stopped}, lab, **variables)
    _start_every(jobs, lab, **patient)
    began = time.monotonic()
    _launch(large, [hosts[0], hosts[3]], JOBS[2, "collective"], **patient)
    with Holdups() as holdups:
        _signal(stopped, hosts, 1, "STOP")
        stopped.wait_for(lambda: _silences_of_1(stopped), "the report")
    assert max(_silences_of_1(stopped)) <= holdups.allow(REPORT_SECONDS)
    large.wait_for(lambda: all(large.count(rank, "pid") for rank in (0, 1)), "the first call")
    _signal(stopped, hosts, 1, "CONT")
    stopped.wait_for(lambda: stopped.logged(f"rank 1 {AGAIN}"), "the second report")
    large.go.touch()  # it ends after the call that is under way
    large.wait_for(lambda: all(large.count(rank, "ended") for rank in (0, 1)), "the second call")
    assert time.monotonic() - began > 4 * SILENT_HOST
    time.sleep(max(0.0, began + QUIET_SECONDS - time.monotonic()))
    for job in (stopped, *jobs.values()):
        job.resume()
        job.await_steps(3)
    for job in (stopped, large, *jobs.values()):
        job.end()
    for job in (large, *jobs.values()):
        _expect_no_warnings(job)


def _signal(job: LinkedRanks, hosts: list[Host], rank: int, name: str) -> None:
    """To a rank, whose number is that of its host's own count of processes."""
    (pid,) = [said["pid"] for said in job.ranks[rank].said if "pid" in said]
    hosts[rank].run(["kill", f"-{name}", str(pid)])
    if name == "CONT":  # its entrance stops when it does
        job.ranks[rank].process.send_signal(signal.SIGCONT)


def _silences_of_1(job: LinkedRanks) -> list[int]:
    """The warnings about rank 1, by the warning rank's clock, in whole seconds."""
    lines = [line for one in job.ranks.values() for line in one.warnings()]
    told = [re.search(rf"rank 1 \(.*\) {SILENT} (\d+) s", line) for line in lines]
    return [int(silence[1]) for silence in told if silence]


def test_a_late_link_is_no_death(build: Build, apart: LinkedRanks) -> None:
    """50 ms from host to host, hidden from nobody: 100 ms a round trip."""
    _start(apart, build(Network(delay=0.05)))
    apart.await_steps(5)
    apart.end()
    _expect_no_warnings(apart)


def test_a_link_that_flaps_is_ridden_out(
    build: Build, every: dict[tuple[int, str], LinkedRanks]
) -> None:
    """The last host's cable is out for 3 s."""
    *_, last = _start_every(every, build(Network(hosts=4)))
    _down(last)
    time.sleep(1)
    every[4, "shutdown"].part()
    time.sleep(2)
    with Holdups() as holdups:
        up = time.monotonic()
        _up(last)
        for job in every.values():
            job.resume()
        for (_, phase), job in every.items():
            if phase != "shutdown":
                job.await_steps(20)
    for (_, phase), job in every.items():
        if phase != "shutdown":
            _expect_resumed(job, up, holdups)
        job.end()


def _expect_resumed(job: LinkedRanks, up: float, holdups: Holdups) -> None:
    """Each rank has made a step in time, by the same clock."""
    for rank, one in job.ranks.items():
        took = min(said["time"] for said in one.said if "step" in said and said["time"] > up) - up
        print(f"rank {rank} went on after {took:.1f} s")
        assert took < holdups.allow(RESUME_SECONDS), (rank, took)


@pytest.mark.parametrize("silenced", [4, 1])
def test_hosts_that_lose_each_other_all_end(
    build: Build, every: dict[tuple[int, str], LinkedRanks], silenced: int
) -> None:
    """The packets of all of them are lost in their own queues, or only those of the last host."""
    hosts = _start_every(
        every, build(Network(hosts=4)), HOROACC_HOST_TIMEOUT_SECONDS=str(HOST_TIMEOUT)
    )
    try:
        with Holdups() as holdups:
            began = time.monotonic()
            for host in hosts[-silenced:]:
                _shut_up(host)
            every[4, "shutdown"].part()
            for (_, phase), job in every.items():
                _expect_lost(job, phase, began, holdups)
    finally:
        for host in hosts[-silenced:]:
            _let_speak(host)


def test_a_host_of_which_the_network_carries_nothing_ends_as_well(
    build: Build, every: dict[tuple[int, str], LinkedRanks]
) -> None:
    """It receives from the others, which repeat packets that it has long acknowledged."""
    jobs = {key: every[key] for key in ((4, "idle"), (2, "collective"))}
    *others, last = _start_every(
        jobs, build(Network(hosts=4)), HOROACC_HOST_TIMEOUT_SECONDS=str(HOST_TIMEOUT)
    )
    with Holdups() as holdups:
        began = time.monotonic()
        _misdirect(last, others)
        for (_, phase), job in jobs.items():
            _expect_lost(job, phase, began, holdups)
