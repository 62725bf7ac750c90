"""Data links between hosts: their operations, and the share of a link that TCP uses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from lab_jobs import MODES, ROOT, horoaccrun

from benchmarks.lab import Laboratory, Network

Build = Callable[[Network], Laboratory]
MIB = 1 << 20


def newest(name: str) -> str:
    """A program of tests/cpp, as the C++ tests build it."""
    programs = ROOT.glob(f"build/cmake-*/cpp_tests/{name}")  # of no sanitizer
    built = sorted(programs, key=lambda path: path.stat().st_mtime)
    if not built:
        pytest.skip("the C++ tests are not built (make test-cpp)")
    return str(built[-1])


@pytest.fixture(scope="module")
def program() -> str:
    return newest("data_links_check")


def run(lab: Laboratory, words: list[str], **settings: object) -> list[str]:
    """Runs it with a rank on each host; returns each rank's output."""
    address = f"{next(iter(lab.hosts.values())).addresses[0]}:39000"
    common = [f"size={len(lab.hosts)}", f"rendezvous={address}"]
    common += [f"{key}={value}" for key, value in settings.items()]
    ranks = [
        host.popen([*words, f"rank={rank}", *common], stdout=subprocess.PIPE, text=True)
        for rank, host in enumerate(lab.hosts.values())
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), printed
    return printed


def goodput(lab: Laboratory, program: str, **settings: object) -> tuple[float, int]:
    """Bits a second from h1 to h2, and over how many connections."""
    words = run(lab, [program, "goodput"], **settings)[0].split()
    return float(words[0]), int(words[3])


def test_three_hosts_do_what_all_data_links_do(build: Build, program: str) -> None:
    lab = build(Network(hosts=3))
    printed = run(lab, [program, "battery"])
    for rank, text in enumerate(printed):
        assert f"good over 10.77.0.{rank + 1}:" in text
    assert all(host.traffic()["lo"].sent_bytes < MIB for host in lab.hosts.values())


def test_bytes_on_the_link_are_the_payload_and_little_more(build: Build, program: str) -> None:
    lab = build(Network(rate=1e9))
    before = lab.traffic()["h1.eth0"]
    goodput(lab, program, bytes=32 * MIB)
    moved = lab.traffic()["h1.eth0"] - before
    assert 32 * MIB < moved.sent_bytes < 1.01 * 32 * MIB
    assert moved.received_bytes < 0.01 * 32 * MIB


def test_several_streams_pass_the_cap_of_one(build: Build, program: str) -> None:
    cap = 50e6
    lab = build(Network(rate=400e6, flow_cap=cap))
    one, streams = goodput(lab, program, bytes=4 * MIB, streams=1)
    assert streams == 1 and one < 1.6 * cap  # a burst passes at once
    several, streams = goodput(lab, program, bytes=16 * MIB)
    assert streams == 8 and several > 3 * cap


def test_the_interface_can_be_chosen(build: Build, program: str) -> None:
    lab = build(Network(rails=2, spine_rate=1e9))
    for interface in ("eth0", "eth1"):
        before = lab.traffic()
        goodput(lab, program, bytes=4 * MIB, interfaces=interface)
        now = lab.traffic()
        moved = {link: (now[link] - before[link]).sent_bytes for link in now}
        assert moved[f"h1.{interface}"] > 4 * MIB
        other = "eth1" if interface == "eth0" else "eth0"
        assert moved[f"h1.{other}"] < MIB and moved["spine"] < MIB


def test_buffers_follow_a_long_way(build: Build, program: str) -> None:
    """A buffer of 64 KiB allows about 64 KiB every round trip of 40 ms; automatic ones far more."""
    lab = build(Network(delay=0.02))
    fixed, _ = goodput(lab, program, bytes=3 * MIB, streams=1, buffer=64 << 10)
    automatic, _ = goodput(lab, program, bytes=16 * MIB, streams=1)
    assert automatic > 2 * fixed


def test_a_host_that_acknowledges_nothing_is_lost(build: Build, program: str) -> None:
    """Also if the connection was not full: a few bytes wait for an answer as well as many."""
    lab = build(Network())
    common = ["size=2", "rendezvous=10.77.0.1:39000", "host_timeout=1", "streams=1"]
    first, second = (
        host.popen([program, "silence", f"rank={rank}", *common], stdin=subprocess.PIPE,
                   stdout=subprocess.PIPE, text=True)
        for rank, host in enumerate(lab.hosts.values())
    )  # fmt: skip
    with first, second:
        try:
            assert first.stdout and first.stdout.readline() == "warm\n"
            silence = ["tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit", "0"]
            lab.hosts["h2"].run(silence)
            said, _ = first.communicate("send\n", timeout=300)
            assert "lost the data links to rank 1: its host has acknowledged nothing" in said
        finally:
            for process in (first, second):
                process.kill()
            lab.hosts["h2"].run(["tc", "qdisc", "del", "dev", "eth0", "root"])


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_data_links_over_mpi_between_hosts(build: Build, name: str) -> None:
    prefix = ROOT / ".mpich" if name == "mpich" else sys.prefix
    if not (ROOT / "horoacc" / "lib" / f"libhoroacc_mpi_{name}.so").exists():
        pytest.skip(f"the plug-in for {name} is not built")
    lab = build(Network())
    before = lab.traffic()["h1.eth0"]
    words = [newest("mpi_links_check"), str(ROOT / "horoacc" / "lib"), str(prefix), "data"]
    lines, _ = horoaccrun(lab, *MODES[name], "-np", "3", "-H", "h1:2,h2:1", *words)
    for rank in range(3):
        assert [text for text in lines[rank] if f"rank {rank} of 3: good" in text], lines
    # The ranks of h1 send theirs to the one of h2.
    assert (lab.traffic()["h1.eth0"] - before).sent_bytes > 2 * 17 * MIB
