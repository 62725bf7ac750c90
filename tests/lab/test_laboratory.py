"""The laboratory itself: separate hosts, links that hold their rates, counters, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.lab import Laboratory, LaboratoryError, Network, missing

STREAMS = [sys.executable, str(Path(__file__).parent / "streams.py")]
Build = Callable[[Network], Laboratory]
RATE, CAP = 400e6, 100e6
SIZE = 4 << 20


def send(
    lab: Laboratory, count: int = 1, size: int = SIZE, source: str = "", to: str = "h2"
) -> float:
    """Sends from h1 to h2; the seconds that it took."""
    with lab.hosts["h2"].popen([*STREAMS, "serve", str(count)], stdout=subprocess.PIPE) as server:
        assert server.stdout
        port = server.stdout.readline().decode().strip()
        words = [*STREAMS, "send", source, to, port, str(count), str(size)]
        done = lab.hosts["h1"].run(words, stdout=subprocess.PIPE, text=True, timeout=300)
    return float(done.stdout)


def test_hosts_are_separate(build: Build) -> None:
    lab = build(Network(hosts=3))
    for name, host in lab.hosts.items():
        command = "hostname; touch /dev/shm/$(hostname); ls /dev/shm; grep -c . /proc/net/unix"
        own, in_shm, sockets = host.run(
            ["sh", "-c", command], stdout=subprocess.PIPE, text=True
        ).stdout.split()
        assert (own, in_shm, sockets) == (name, name, "1"), "a host sees another host's names"
    assert not Path("/dev/shm/h1").exists()
    assert lab.hosts["h1"].run(["pwd"], stdout=subprocess.PIPE, text=True).stdout.strip() == (
        os.getcwd()
    )
    assert send(lab, to="h2") > 0
    assert missing() is None


def test_a_link_holds_its_rate_and_counts(build: Build) -> None:
    lab = build(Network(rate=RATE))
    before = lab.traffic()
    seconds = send(lab)
    there = lab.traffic()["h1.eth0"] - before["h1.eth0"]
    back = lab.traffic()["h2.eth0"] - before["h2.eth0"]
    # A burst of 256 KiB passes at once.
    assert seconds > (SIZE - (512 << 10)) * 8 / RATE
    assert SIZE < there.sent_bytes < 1.02 * SIZE + 20000, there
    assert back.sent_bytes < 0.02 * SIZE + 20000
    # Both ends count the same packets, but are not read at the same instant.
    assert abs(back.received_bytes - there.sent_bytes) < 2000


def test_one_flow_stays_below_its_cap_and_several_below_the_rate(build: Build) -> None:
    lab = build(Network(rate=RATE, flow_cap=CAP))
    burst = 512 << 10
    assert send(lab, 1) > (SIZE - burst) * 8 / CAP
    seconds = send(lab, 4, 2 * SIZE)
    assert seconds > (2 * SIZE - 4 * burst) * 8 / RATE
    # Twice the bytes, and yet sooner than one flow alone could.
    assert seconds < (2 * SIZE) * 8 / CAP


def test_traffic_of_one_rail_does_not_cross_the_spine(build: Build) -> None:
    lab = build(Network(rails=2, spine_rate=RATE))
    first, second = lab.hosts["h1"].addresses, lab.hosts["h2"].addresses
    for source, to, across in [(0, 0, 0), (1, 1, 0), (0, 1, 1), (1, 0, 1)]:
        before = lab.traffic()
        send(lab, source=first[source], to=second[to], size=SIZE)
        now = lab.traffic()
        moved = {link: now[link] - before[link] for link in now}
        assert moved[f"h1.eth{source}"].sent_bytes > SIZE
        assert moved[f"h2.eth{to}"].received_bytes > SIZE
        spine = moved["spine"].sent_bytes + moved["spine"].received_bytes
        assert (spine > SIZE) if across else (spine < 0.01 * SIZE), (source, to, spine)


def test_packets_are_delayed(build: Build) -> None:
    lab = build(Network(delay=0.05))
    # After the handshake of TCP: there and back once more.
    assert 0.1 <= send(lab, size=1) < 5


def test_a_network_that_cannot_be() -> None:
    for given, words in [
        ({"hosts": 0}, "1 to 250 hosts"),
        ({"rails": 3}, "one rail or two"),
        ({"spine_rate": 1e9}, "two rails"),
        ({"flow_cap": 1e6}, "needs a rate"),
        ({"delay": 0.1, "rails": 2}, "one rail"),
        ({"rate": 0.0}, "above 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            Network(**given)  # type: ignore[arg-type]


def interfaces() -> str:
    return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout


def test_nothing_is_left_however_its_user_ends(build: Build) -> None:
    build(Network())  # skips without root
    before = interfaces()
    program = (
        "import sys, time; from benchmarks.lab import *\n"
        "with Laboratory(Network()) as lab:\n"
        "    host = lab.hosts['h2']\n"
        "    sleeper = host.popen(['sleep', '1000'])\n"
        "    print(host.pid, sleeper.pid, flush=True)\n"
        "    sys.stdin.read(1)\n"
    )
    for killed in (False, True):
        user = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert user.stdin and user.stdout
        pids = [int(word) for word in user.stdout.readline().split()]
        assert len(pids) == 2
        if killed:
            user.send_signal(signal.SIGKILL)
        else:
            user.stdin.close()
        user.wait(timeout=20)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/ns/net").exists() for pid in pids):
            assert time.monotonic() < deadline, f"{pids} still live, killed: {killed}"
            time.sleep(0.01)
        user.stdout.close()
    assert interfaces() == before


def test_a_failure_says_why_and_leaves_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(Network())
    lab = Laboratory(Network())
    monkeypatch.setattr(
        "benchmarks.lab.network.shape", lambda *_: ["qdisc add dev eth9 root bfifo"]
    )
    lab.network = Network(rate=1e9)
    with pytest.raises(LaboratoryError, match="Cannot find device"):
        lab.__enter__()
    assert lab.hosts == {} and lab._init is None
