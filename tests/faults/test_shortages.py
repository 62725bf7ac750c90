"""A rank short of descriptors or disk (row 23), and ranks that find no way to each other (29)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import unauthenticated_peers as peers
from launcher_jobs import Job
from linked_ranks import PHASES, LinkedRanks, free_port

FEW = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')
PRINT = """
import numpy as np
import horoacc as hvd
hvd.init()
hvd.barrier()  # rank 0's timeline has begun
for line in range(1500):
    print("x" * 1000)
for step in range(300):
    total = hvd.allreduce(np.ones(100), op=hvd.Sum, name=f"step {step}")
    assert (total == hvd.size()).all()
hvd.shutdown()
"""
SIX = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"'
SMALL = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'


@pytest.fixture(params=[2, 4, 8], ids=lambda size: f"{size} ranks")
def some(linked: LinkedRanks, request: pytest.FixtureRequest) -> LinkedRanks:
    """Two ranks, four or eight, not started yet."""
    linked.size = request.param
    return linked


def test_64_descriptors_are_enough(some: LinkedRanks) -> None:
    """In every phase, with idle connections at each port that take the remaining descriptors."""
    for rank in range(some.size):
        some.start(rank, prefix=(*FEW, "64"))
    some.await_start()
    ports = {port for one in some.ranks.values() for port in peers.ports_of(one.process.pid)}
    crowds = [peers.Crowd(address, 200) for address in ports]
    assert [crowd.await_all() for crowd in crowds] == [200] * (2 * some.size)
    for phase in PHASES:
        some.enter(phase)
        some.resume()
        some.await_steps(20)
    some.enter("idle")
    some.part()
    some.end()
    for crowd in crowds:
        crowd.leave()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_few_addresses_are_enough(job: Job, size: int) -> None:
    """Memory that ranks share takes addresses, of which a batch system may allow few."""
    few = ("sh", "-c", 'ulimit -v "$0" && exec "$@"', str(30 << 20))
    job.run("--tcp", "-np", str(size), *few, sys.executable, "-c", PRINT)


@pytest.mark.parametrize("victim", ["first", "last"])
def test_too_few_descriptors_end_the_start(some: LinkedRanks, victim: str) -> None:
    """Too few for the links, but enough to get that far; the other ranks learn of it."""
    short = 0 if victim == "first" else some.size - 1
    for rank in range(some.size):
        # The first rank keeps a connection of every other one open until all have come.
        spare = {"LINKED_SPARE": str(4 + (some.size - 2) * (short == 0))} if rank == short else {}
        some.start(rank, HOROACC_START_TIMEOUT="20", **spare)
    errors = some.await_errors()
    assert {said["at"] for said in errors.values()} == {"init"}
    words = ("Too many open files", "no file descriptors left")
    assert any(word in errors[short]["text"] for word in words), errors
    some.end(7)


def test_peers_at_a_rank_without_descriptors(some: LinkedRanks) -> None:
    last = some.size - 1
    for rank in range(last):
        some.start(rank)
    some.start(last, LINKED_HOARD="1")
    some.await_start()
    crowds = [peers.Crowd(port, 250) for port in peers.ports_of(some.ranks[last].process.pid)]
    assert [crowd.await_all() for crowd in crowds] == [250, 250]  # of control links, and of data
    for phase in PHASES:
        some.enter(phase)
        some.resume()
        some.await_steps(20)
    some.enter("idle")
    some.part()
    some.end()
    for crowd in crowds:
        crowd.leave()
    told = [line for line in some.ranks[last].warnings() if "turned away" in line]
    assert len(told) == 2 and all("no file descriptors left" in line for line in told), told


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_full_disk_under_outputs_and_timeline(job: Job, tmp_path: Path, size: int) -> None:
    """The files take no more; the job goes on, and says so once for each file."""
    folder = tmp_path / "logs"
    folder.mkdir()
    unshare = ["unshare", "--mount", "sh", "-c", SMALL, str(folder)]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may not mount in a namespace of its own")
    command = job.command(
        "--tcp", "-np", str(size), "--output-filename", str(folder),
        "--timeline-filename", str(folder / "trace.json"),
    )  # fmt: skip
    done = subprocess.run(
        [*unshare, *command, sys.executable, "-c", PRINT],
        env=job.environ(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("x" * 1000) == 1500 * size
    lines = [line for line in done.stderr.splitlines() if "No space left" in line]
    (timeline,) = [line for line in lines if "trace.json" in line]
    assert " warning: the timeline " in timeline, timeline
    outputs = sorted(line for line in lines if "/stdout'" in line)
    assert len(outputs) == size, done.stderr
    for rank, line in enumerate(outputs):
        assert f"rank.{rank}/stdout" in line and line.startswith("horoaccrun: "), line
    # Rank 0's line about its timeline is written nowhere either.
    assert all("rank.0/stderr" in line for line in {*lines} - {timeline, *outputs}), done.stderr
    job.expect_nothing_left()


@pytest.mark.parametrize("flag", ["--output-filename", "--timeline-filename"])
def test_an_output_that_cannot_be_written(job: Job, flag: str) -> None:
    """It is a wrong setting, and known before anything was trained."""
    code = "import horoacc as hvd; hvd.init()"
    done = job.run("--tcp", "-np", "2", flag, "/proc/none/x", sys.executable, "-c", code, code=None)
    assert done.code != 0 and "/proc/none" in done.err and "No such file" in done.err, done
    assert "Traceback" not in done.err or flag != "--output-filename"
    job.expect_nothing_left()


def _refused(ranks: LinkedRanks, address: str) -> str:
    """The errors of ranks that dial an address where rank 0 does not listen."""
    for rank in range(1, ranks.size):
        ranks.start(rank, address, HOROACC_START_TIMEOUT="2")
    told = ranks.await_errors(*range(1, ranks.size)).values()
    assert all(said["error"] == "Timeout" and said["culprit"] == 0 for said in told), told
    ranks.end(7)
    return "\n".join(sorted({said["text"] for said in told}))


def test_a_closed_port_is_named_with_the_interface(some: LinkedRanks) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = _refused(some, address)
    assert f"cannot reach rank 0 at {address} over lo (127.0.0.1): " in text
    assert "Connection refused" in text


def test_a_silent_port_is_named_with_the_interface(some: LinkedRanks) -> None:
    """As behind a firewall that answers nothing: the listener sends no byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert f"at {address} over lo (127.0.0.1)" in _refused(some, address)


def test_an_unknown_host_is_named(some: LinkedRanks) -> None:
    text = _refused(some, "no-such-host.invalid:4000")
    assert "cannot reach rank 0 at no-such-host.invalid:4000: cannot resolve" in text


def test_an_unknown_interface_is_named_with_those_there_are(some: LinkedRanks) -> None:
    for rank in range(some.size):
        some.start(rank, HOROACC_NETWORK_INTERFACES="nosuch0")
    for said in some.await_errors().values():
        assert said["error"] == "ConfigError"
        name = os.uname().nodename
        assert f"host {name} has no network interface named in 'nosuch0'" in said["text"]
        assert "it has " in said["text"] and "lo (127.0.0.1)" in said["text"]
    some.end(7)


PAIR = """
import os, subprocess, sys
RANK = '''
import numpy as np
import horoacc as hvd
hvd.init()
assert (hvd.allreduce(np.ones(1 << 18), op=hvd.Sum) == hvd.size()).all()
hvd.shutdown()
'''
size = int(sys.argv[1])
ranks = []
for rank in range(size):
    place = {"RANK": rank, "SIZE": size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": rank,
             "CROSS_SIZE": size, "SECRET": "s" * 64, "RENDEZVOUS": "[::1]:4711",
             "SIMULATED_HOSTS": "+".join(["1"] * size)}
    own = {f"HOROACC_{name}": str(value) for name, value in place.items()}
    ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=os.environ | own))
sys.exit(max(abs(one.wait()) for one in ranks))
"""


@pytest.mark.parametrize("size", [2, 4, 8])
def test_hosts_that_have_ipv6_only(job: Job, size: int) -> None:
    unshare = ["unshare", "--net", "sh", "-c", SIX, "sh"]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may not have a network of its own without IPv4")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", PAIR, str(size)],
        env=job.environ(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job.expect_nothing_left()
