"""Networks that are slow, flap, or fall apart (rows 15 to 18), with a rank on each of two hosts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launcher_jobs import Job
from linked_ranks import LinkedRanks

from benchmarks.lab import Host, Laboratory, Network

Build = Callable[[Network], Laboratory]
# What the kernel's timers add to the limit after which a host counts as lost, and a busy machine.
LOST_SECONDS = 60.0
LIMIT = {"HOROACC_HOST_TIMEOUT_SECONDS": "5"}
SILENCE = "pfifo limit 0"  # a queue that takes no packet: what a host sends goes nowhere


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[LinkedRanks]:
    """Two ranks, not started yet; the test puts them on hosts."""
    ranks = LinkedRanks(Job(), tmp_path)
    yield ranks
    ranks.kill()


def _start(ranks: LinkedRanks, lab: Laboratory, **variables: str) -> list[Host]:
    hosts = [lab.hosts["h1"], lab.hosts["h2"]]
    address = f"{hosts[0].addresses[0]}:4711"
    for rank, host in enumerate(hosts):
        prefix = tuple(host.command([]))
        ranks.start(rank, address, prefix, **{"HOROACC_PARTED_HOSTS": ""} | variables)
    ranks.await_start()
    return hosts


def _shut_up(host: Host) -> None:
    host.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *SILENCE.split()])


def _let_speak(host: Host) -> None:
    host.run(["tc", "qdisc", "del", "dev", "eth0", "root"])


def _down(host: Host) -> None:
    host.run(["ip", "link", "set", "eth0", "down"])


def _up(host: Host) -> None:
    host.run(["ip", "link", "set", "eth0", "up"])
    host.run(["ip", "route", "replace", "10.77.0.0/24", "dev", "eth0", "src", host.addresses[0]])


def _expect_lost(ranks: LinkedRanks, began: float) -> None:
    """Each rank names the other one, and none goes on."""
    errors = ranks.await_errors()
    steps = {rank: ranks.step_of(rank) for rank in errors}
    for rank, said in errors.items():
        assert said["error"] == "PeerLost" and said["culprit"] in (0, 1), (rank, said)
        assert "lost the " in said["text"] and "link" in said["text"], said
        assert said["time"] - began < LOST_SECONDS, (rank, said["time"] - began)
        print(f"rank {rank} noticed after {said['time'] - began:.1f} s")
    assert any(said["culprit"] == 1 - rank for rank, said in errors.items())
    ranks.end(9)
    assert steps == {rank: ranks.step_of(rank) for rank in errors}


def test_a_slow_link_is_no_death(build: Build, apart: LinkedRanks) -> None:
    """10 Mbit/s, of which each step takes 40 kB a direction."""
    apart.elements = 10_000
    _start(apart, build(Network(rate=10e6)))
    apart.await_steps(20)
    apart.end()


def test_a_late_link_is_no_death(build: Build, apart: LinkedRanks) -> None:
    """50 ms from host to host, hidden from nobody: 100 ms a round trip."""
    _start(apart, build(Network(delay=0.05)))
    apart.await_steps(5)
    apart.end()


def test_a_link_that_flaps_is_ridden_out(build: Build, apart: LinkedRanks) -> None:
    _, other = _start(apart, build(Network()))
    _down(other)
    time.sleep(3)
    _up(other)
    apart.await_steps(20)
    apart.end()


def test_a_partition_ends_both_sides(build: Build, apart: LinkedRanks) -> None:
    hosts = _start(apart, build(Network()), **LIMIT)
    for host in hosts:
        _shut_up(host)
    try:
        _expect_lost(apart, time.monotonic())
    finally:
        for host in hosts:
            _let_speak(host)


def test_a_way_that_is_dead_in_one_direction_ends_both_sides(
    build: Build, apart: LinkedRanks
) -> None:
    """What h2 says is lost, h1's words arrive."""
    _, other = _start(apart, build(Network()), **LIMIT)
    _shut_up(other)
    try:
        _expect_lost(apart, time.monotonic())
    finally:
        _let_speak(other)
