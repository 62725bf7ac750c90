"""A rank short of descriptors or disk (row 23), and ranks that find no way to each other (29)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import strangers
from launcher_jobs import Job
from linked_ranks import LinkedRanks, free_port

FEW = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')
PRINT = "import sys; [print('x' * 1000) for _ in range(3000)]; sys.exit(0)"
SMALL = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'


def test_64_descriptors_are_enough_for_two_ranks(linked: LinkedRanks) -> None:
    for rank in range(2):
        linked.start(rank, prefix=(*FEW, "64"))
    linked.await_start()
    ports = {port for one in linked.ranks.values() for port in strangers.ports_of(one.process.pid)}
    crowds = [strangers.Crowd(address, 200) for address in ports]
    linked.await_steps(20)
    for crowd in crowds:
        crowd.leave()
    linked.end()


@pytest.mark.parametrize("victim", [0, 1])
def test_too_few_descriptors_end_the_start(linked: LinkedRanks, victim: int) -> None:
    """Too few for the links, but enough to get that far; the other rank learns of it."""
    variables = {"HOROACC_START_TIMEOUT": "20", "LINKED_SPARE": "4"}
    for rank in range(2):
        linked.start(rank, **(variables if rank == victim else {"HOROACC_START_TIMEOUT": "20"}))
    errors = linked.await_errors()
    assert {said["at"] for said in errors.values()} == {"init"}
    assert "Too many open files" in errors[victim]["text"], errors
    linked.end(7)


def test_strangers_at_a_rank_without_descriptors(linked: LinkedRanks) -> None:
    linked.start(0)
    linked.start(1, LINKED_HOARD="1")
    linked.await_start()
    (port,) = strangers.ports_of(linked.ranks[1].process.pid)
    crowd = strangers.Crowd(port, 500)
    linked.await_steps(20)
    crowd.leave()
    linked.end()
    told = [line for line in linked.ranks[1].warnings() if "turned away" in line]
    assert len(told) == 1 and "no file descriptors left" in told[0], told


def test_a_full_disk_under_the_ranks_output(job: Job, tmp_path: Path) -> None:
    """The file takes no more; the job goes on, and says so once for each file."""
    folder = tmp_path / "logs"
    folder.mkdir()
    unshare = ["unshare", "--mount", "sh", "-c", SMALL, str(folder)]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may not mount in a namespace of its own")
    command = job.command("--tcp", "-np", "1", "--output-filename", str(folder))
    done = subprocess.run(
        [*unshare, *command, sys.executable, "-c", PRINT],
        env=job.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("x" * 1000) == 3000
    (said,) = [line for line in done.stderr.splitlines() if "No space left" in line]
    assert "rank.0/stdout" in said and "horoaccrun: " in said
    job.expect_nothing_left()


@pytest.mark.parametrize("flag", ["--output-filename", "--timeline-filename"])
def test_an_output_that_cannot_be_written(job: Job, flag: str) -> None:
    """It is a wrong setting, and known before anything was trained."""
    code = "import horoacc as hvd; hvd.init()"
    done = job.run("--tcp", "-np", "2", flag, "/proc/none/x", sys.executable, "-c", code, code=None)
    assert done.code != 0 and "/proc/none" in done.err and "No such file" in done.err, done
    assert "Traceback" not in done.err or flag != "--output-filename"
    job.expect_nothing_left()


def _refused(linked: LinkedRanks, address: str) -> str:
    linked.start(1, address, HOROACC_START_TIMEOUT="2")
    (said,) = linked.await_errors(1).values()
    assert said["error"] == "Timeout" and said["culprit"] == 0
    linked.end(7)
    return str(said["text"])


def test_a_closed_port_is_named_with_the_interface(linked: LinkedRanks) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = _refused(linked, address)
    assert f"cannot reach rank 0 at {address} over lo (127.0.0.1): " in text
    assert "Connection refused" in text


def test_a_silent_port_is_named_with_the_interface(linked: LinkedRanks) -> None:
    """As behind a firewall that answers nothing: who listens there never speaks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert f"at {address} over lo (127.0.0.1)" in _refused(linked, address)


def test_an_unknown_host_is_named(linked: LinkedRanks) -> None:
    text = _refused(linked, "no-such-host.invalid:4000")
    assert "cannot reach rank 0 at no-such-host.invalid:4000: cannot resolve" in text


def test_an_unknown_interface_is_named_with_those_there_are(linked: LinkedRanks) -> None:
    for rank in range(2):
        linked.start(rank, HOROACC_NETWORK_INTERFACES="nosuch0")
    for said in linked.await_errors().values():
        assert said["error"] == "ConfigError"
        name = os.uname().nodename
        assert f"host {name} has no network interface named in 'nosuch0'" in said["text"]
        assert "it has " in said["text"] and "lo (127.0.0.1)" in said["text"]
    linked.end(7)
